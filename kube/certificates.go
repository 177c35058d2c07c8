package kube

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// Lives of keys. A third of one is left when the next is made; a new authority signs nothing before everyone has had overlap
// to hear of it, and the old one is forgotten when everything has been signed by the new one for as long.
const (
	authorityLife = 2 * 365 * 24 * time.Hour
	leafLife      = 90 * 24 * time.Hour
	overlap       = 24 * time.Hour
	// skew is how far clocks of nodes may be apart.
	skew = time.Hour
)

// signer is one key of an authority.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// made is when it was.
func (s *signer) made() time.Time { return s.cert.NotBefore.Add(skew) }

// authority signs all certificates of one configuration. It has one signer, or two while one takes over, the older one first.
type authority struct{ signers []signer }

// leaf is a certificate that is in use, with the authorities that stand beside it.
type leaf struct {
	cert   *x509.Certificate
	bundle []byte
	// pair are the certificate and its key as they are in a Secret.
	certPEM, keyPEM []byte
}

// renewed reports whether a life of which a part is over has to be followed by a new one.
func renewed(notBefore, notAfter, now time.Time) bool {
	return now.After(notAfter.Add(-notAfter.Sub(notBefore) / 3))
}

// at brings an authority to a time: it makes a signer where there is none or the newest grows old, and forgets one that
// nothing needs. in are all certificates in use.
func (a authority) at(now time.Time, in []leaf) (authority, error) {
	next := authority{slices.Clone(a.signers)}
	if n := len(next.signers); n > 1 && now.Sub(next.signers[n-1].made()) > overlap && !slices.ContainsFunc(in, func(l leaf) bool {
		return l.cert.CheckSignatureFrom(next.signers[n-1].cert) != nil || now.Sub(l.cert.NotBefore.Add(skew)) < overlap
	}) {
		next.signers = next.signers[n-1:]
	}
	next.signers = slices.DeleteFunc(next.signers, func(s signer) bool { return now.After(s.cert.NotAfter) })
	if n := len(next.signers); n == 0 || n == 1 && renewed(next.signers[0].cert.NotBefore, next.signers[0].cert.NotAfter, now) {
		s, err := newSigner(now, authorityLife)
		if err != nil {
			return a, err
		}
		next.signers = append(next.signers, s)
	}
	return next, nil
}

// signs is the signer of new certificates: the newest one that everyone has heard of. in are all certificates in use.
func (a authority) signs(now time.Time, in []leaf) *signer {
	newest := &a.signers[len(a.signers)-1]
	if len(a.signers) == 1 {
		return newest
	}
	bundle := a.bundle()
	if now.Sub(newest.made()) < overlap || slices.ContainsFunc(in, func(l leaf) bool { return !bytes.Equal(l.bundle, bundle) }) {
		return &a.signers[0]
	}
	return newest
}

// bundle are the certificates by which those in use are checked.
func (a authority) bundle() []byte {
	var out []byte
	for i := range a.signers {
		out = append(out, certPEM(a.signers[i].cert.Raw)...)
	}
	return out
}

// fits reports whether a certificate may go on: it is for these names, by this signer, and not old.
func (l leaf) fits(names []string, by *signer, now time.Time) bool {
	return l.cert != nil && slices.Equal(l.cert.DNSNames, names) && l.cert.CheckSignatureFrom(by.cert) == nil && !renewed(l.cert.NotBefore, l.cert.NotAfter, now)
}

// ends is when the next thing has to happen to an authority and its certificates.
func (a authority) ends(now time.Time, in []leaf) time.Time {
	third := func(c *x509.Certificate) time.Time { return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3) }
	newest := &a.signers[len(a.signers)-1]
	times := []time.Time{third(newest.cert)}
	for _, l := range in {
		times = append(times, third(l.cert))
	}
	if len(a.signers) > 1 {
		times = append(times, newest.made().Add(overlap))
		for _, l := range in {
			times = append(times, l.cert.NotBefore.Add(skew+overlap))
		}
	}
	next := now.Add(leafLife)
	for _, t := range times {
		if !t.Before(now) && t.Before(next) {
			next = t
		}
	}
	return next.Add(time.Second)
}

func newSigner(now time.Time, life time.Duration) (signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return signer{}, fmt.Errorf("cannot make a key: %w", err)
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "sluice"}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	raw, err := certify(template, now, life, key, nil)
	if err != nil {
		return signer{}, err
	}
	cert, err := x509.ParseCertificate(raw)
	return signer{cert, key}, err
}

// issue makes a certificate and its key. Without names it is a client's.
func (s *signer) issue(names []string, name string, now time.Time) (leaf, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return leaf{}, fmt.Errorf("cannot make a key: %w", err)
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: names, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if len(names) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	raw, err := certify(template, now, leafLife, key, s)
	if err != nil {
		return leaf{}, err
	}
	l := leaf{certPEM: certPEM(raw)}
	if l.cert, err = x509.ParseCertificate(raw); err != nil {
		return leaf{}, fmt.Errorf("cannot read what was signed: %w", err)
	}
	l.keyPEM, err = keyPEM(key)
	return l, err
}

// certify signs a certificate, by itself where there is no other signer. None outlives whom it was signed by.
func certify(template *x509.Certificate, now time.Time, life time.Duration, key *ecdsa.PrivateKey, by *signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("cannot make a serial number: %w", err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-skew).UTC().Truncate(time.Second), now.Add(life).UTC().Truncate(time.Second)
	parent, signing := template, key
	if by != nil {
		parent, signing = by.cert, by.key
		if template.NotAfter.After(parent.NotAfter) {
			template.NotAfter = parent.NotAfter
		}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signing)
	if err != nil {
		return nil, fmt.Errorf("cannot sign a certificate: %w", err)
	}
	return raw, nil
}

func certPEM(raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("cannot write down a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), nil
}

// authorityOf reads an authority from the certificates and keys of its Secret. One whose text is damaged is none: another one
// is made, and everything is signed anew.
func authorityOf(certs, keys []byte) (authority, error) {
	var a authority
	for {
		c, moreCerts := pem.Decode(certs)
		k, moreKeys := pem.Decode(keys)
		if c == nil && k == nil {
			return a, nil
		}
		if c == nil || k == nil {
			return authority{}, errors.New("an authority has as many certificates as keys")
		}
		cert, err := x509.ParseCertificate(c.Bytes)
		if err != nil {
			return authority{}, fmt.Errorf("cannot read an authority's certificate: %w", err)
		}
		key, err := x509.ParsePKCS8PrivateKey(k.Bytes)
		if err != nil {
			return authority{}, fmt.Errorf("cannot read an authority's key: %w", err)
		}
		ec, ok := key.(*ecdsa.PrivateKey)
		if !ok || !ec.PublicKey.Equal(cert.PublicKey) {
			return authority{}, errors.New("an authority's key is not that of its certificate")
		}
		a.signers = append(a.signers, signer{cert, ec})
		certs, keys = moreCerts, moreKeys
	}
}

// text is an authority as its Secret has it.
func (a authority) text() (certs, keys []byte, err error) {
	for i := range a.signers {
		key, err := keyPEM(a.signers[i].key)
		if err != nil {
			return nil, nil, err
		}
		certs, keys = append(certs, certPEM(a.signers[i].cert.Raw)...), append(keys, key...)
	}
	return certs, keys, nil
}

// leafOf reads a certificate in use; one that can't be used has no cert.
func leafOf(cert, key, bundle []byte) leaf {
	l := leaf{certPEM: cert, keyPEM: key, bundle: bundle}
	c, _ := pem.Decode(cert)
	k, _ := pem.Decode(key)
	if c == nil || k == nil {
		return l
	}
	parsed, err := x509.ParseCertificate(c.Bytes)
	if err != nil {
		return l
	}
	own, err := x509.ParsePKCS8PrivateKey(k.Bytes)
	if ec, ok := own.(*ecdsa.PrivateKey); err != nil || !ok || !ec.PublicKey.Equal(parsed.PublicKey) {
		return l
	}
	l.cert = parsed
	return l
}
