package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names that the chart and the values for Envoy Gateway say, too: the Service that leads to any replica, and the Secrets beside
// it, with the authority and the server's keys, with the authority alone, and with what Envoy Gateway shows.
const (
	extensionName   = "inference-gateway-extension"
	extensionCA     = extensionName + "-ca"
	extensionClient = extensionName + "-client"
)

// extensionLife is how long the extension's authority lives. Envoys are told of it with their configuration, which nobody
// makes anew because an authority is: another one comes once in this time, or when its Secret is deleted.
const extensionLife = 10 * 365 * 24 * time.Hour

// Pauses between two looks at the Secrets: before they were seen, and after.
const (
	keysSoon  = time.Second
	keysLater = 30 * time.Second
)

// extensionKeys are the keys of an Extension's replicas, which one of them makes.
type extensionKeys struct {
	api       client.Client
	namespace string
	now       func() time.Time

	mu        sync.Mutex
	pair      *tls.Certificate // nil before it was read
	clients   *x509.CertPool
	authority []byte
}

// bundle are the certificates by which Envoys check the server's.
func (k *extensionKeys) bundle() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.authority
}

// config is what the server shows, and by whom it knows who calls.
func (k *extensionKeys) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.pair == nil {
			return nil, errors.New("there is no certificate yet: a replica that may write makes it")
		}
		return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{*k.pair}, ClientCAs: k.clients, ClientAuth: tls.VerifyClientCertIfGiven}, nil
	}}
}

// look takes over what the Secrets hold. With write it makes what is missing or old before.
func (k *extensionKeys) look(ctx context.Context, write bool) error {
	own, err := k.read(ctx, extensionName)
	if err != nil {
		return err
	}
	if write {
		if err := k.renew(ctx, own); err != nil {
			return err
		}
	}
	pair, err := tls.X509KeyPair(own.Data[corev1.TLSCertKey], own.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		if len(own.Data) == 0 {
			return nil // nobody has made them yet
		}
		return fmt.Errorf("cannot use Secret %s/%s (delete it, and another one is made): %w", k.namespace, extensionName, err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(own.Data[entryCA])
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pair, k.clients, k.authority = &pair, clients, own.Data[entryCA]
	return nil
}

// read is a Secret, empty if it isn't there.
func (k *extensionKeys) read(ctx context.Context, name string) (*corev1.Secret, error) {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: name}}
	if err := k.api.Get(ctx, client.ObjectKeyFromObject(s), s); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("cannot read Secret %s/%s: %w", k.namespace, name, err)
	}
	return s, nil
}

// entryCAKey is where an authority's key stands beside it.
const entryCAKey = "ca.key"

// renew makes what is missing or old: the authority first, so that nothing is signed by one that might be lost. own becomes what
// is there then.
func (k *extensionKeys) renew(ctx context.Context, own *corev1.Secret) error {
	now := k.now()
	a, err := authorityOf(own.Data[entryCA], own.Data[entryCAKey])
	if err != nil || len(a.signers) != 1 || renewed(a.signers[0].cert.NotBefore, a.signers[0].cert.NotAfter, now) {
		s, err := newSigner(now, extensionLife)
		if err != nil {
			return err
		}
		a = authority{[]signer{s}}
	}
	certs, keys, err := a.text()
	if err != nil {
		return err
	}
	host := extensionName + "." + k.namespace + ".svc"
	want := map[string][]byte{entryCA: certs, entryCAKey: keys}
	if err := k.sign(&a, own, want, []string{host}, now); err != nil {
		return err
	}
	if err := k.write(ctx, own, want); err != nil {
		return err
	}
	theirs, err := k.read(ctx, extensionClient)
	if err != nil {
		return err
	}
	shown := make(map[string][]byte)
	if err := k.sign(&a, theirs, shown, nil, now); err != nil {
		return err
	}
	if err := k.write(ctx, theirs, shown); err != nil {
		return err
	}
	public, err := k.read(ctx, extensionCA)
	if err != nil {
		return err
	}
	return k.write(ctx, public, map[string][]byte{corev1.TLSCertKey: certs})
}

// sign puts a certificate and its key into want: those that a Secret has, if they may go on.
func (k *extensionKeys) sign(a *authority, there *corev1.Secret, want map[string][]byte, names []string, now time.Time) error {
	by := &a.signers[0]
	l := leafOf(there.Data[corev1.TLSCertKey], there.Data[corev1.TLSPrivateKeyKey], nil)
	if !l.fits(names, by, now) {
		var err error
		if l, err = by.issue(names, there.Name, now); err != nil {
			return err
		}
	}
	want[corev1.TLSCertKey], want[corev1.TLSPrivateKeyKey] = l.certPEM, l.keyPEM
	return nil
}

// write has a Secret hold want and nothing else. Of two that write, one fails and looks again.
func (k *extensionKeys) write(ctx context.Context, s *corev1.Secret, want map[string][]byte) error {
	if maps.EqualFunc(s.Data, want, func(a, b []byte) bool { return string(a) == string(b) }) {
		return nil
	}
	before := s.DeepCopy()
	s.Data = want
	var err error
	if s.ResourceVersion == "" {
		err = k.api.Create(ctx, s)
	} else {
		err = k.api.Patch(ctx, s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	}
	if err != nil {
		return fmt.Errorf("cannot write Secret %s/%s: %w", k.namespace, s.Name, err)
	}
	return nil
}
