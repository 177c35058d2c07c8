package kube

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// years plays the life of an authority: a controller that comes by now and then, and pods that hear of its writes up to
// late later. Whoever shows a certificate at any moment is believed by whoever checks it by what it has heard.
type years struct {
	authority authority
	leaves    map[string]leaf
	// heard are what each pod read, the newest last.
	heard []hearing
}

type hearing struct {
	at   time.Time
	leaf leaf
	pool *x509.CertPool
}

// turn is one look of the controller at two certificates.
func (y *years) turn(t *testing.T, now time.Time) {
	t.Helper()
	var in []leaf
	for _, l := range y.leaves {
		if l.cert.NotAfter.After(now) {
			in = append(in, l)
		}
	}
	next, err := y.authority.at(now, in)
	if err != nil {
		t.Fatal(err)
	}
	by := next.signs(now, in)
	bundle := next.bundle()
	for _, name := range []string{"a", "b"} {
		l, there := y.leaves[name]
		if !there || !l.fits([]string{name}, by, now) {
			if l, err = by.issue([]string{name}, name, now); err != nil {
				t.Fatal(err)
			}
		}
		l.bundle = bundle
		y.leaves[name] = l
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(bundle) {
			t.Fatal("got no authority")
		}
		y.heard = append(y.heard, hearing{now, l, pool})
	}
	y.authority = next
}

func TestCertificatesGoOn(t *testing.T) {
	const late = 20 * time.Hour
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		y := &years{leaves: make(map[string]leaf)}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		end := now.AddDate(6, 0, 0)
		signers := make(map[string]bool)
		for now.Before(end) {
			y.turn(t, now)
			for _, s := range y.authority.signers {
				signers[s.cert.SerialNumber.String()] = true
			}
			// What anyone may still go by: the last that was heard more than late ago, and everything since.
			first := 0
			for i := range y.heard {
				if now.Sub(y.heard[i].at) > late {
					first = max(first, i-1)
				}
			}
			y.heard = y.heard[max(first, 0):]
			for _, shows := range y.heard {
				for _, checks := range y.heard {
					if _, err := shows.leaf.cert.Verify(x509.VerifyOptions{Roots: checks.pool, CurrentTime: now, DNSName: shows.leaf.cert.DNSNames[0]}); err != nil {
						t.Fatalf("seed %d, %s: a certificate of %s is not believed by what was heard at %s: %v", seed, now, shows.at, checks.at, err)
					}
				}
			}
			if n := len(y.authority.signers); n > 2 {
				t.Fatalf("got %d signers at a time", n)
			}
			now = now.Add(time.Duration(1+r.IntN(14*24)) * time.Hour)
		}
		if len(signers) < 4 {
			t.Errorf("seed %d: got %d signers in six years, want a new one each 16 months", seed, len(signers))
		}
	}
}

// A controller that looks when it said it would, and at no other time, is in time for everything.
func TestCertificatesSayWhenToLook(t *testing.T) {
	y := &years{leaves: make(map[string]leaf)}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	end, looks := now.AddDate(6, 0, 0), 0
	for now.Before(end) {
		y.turn(t, now)
		looks++
		var in []leaf
		for name, l := range y.leaves {
			if !l.cert.NotAfter.After(now.Add(leafLife / 4)) {
				t.Fatalf("%s: the certificate of %s ends at %s", now, name, l.cert.NotAfter)
			}
			in = append(in, l)
		}
		next := y.authority.ends(now, in)
		if !next.After(now) {
			t.Fatalf("%s: got %s as the time to look again", now, next)
		}
		now = next.Add(time.Second)
	}
	if looks > 200 {
		t.Errorf("got %d looks in six years, want some forty", looks)
	}
}

func TestAuthorityIsKept(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, err := authority{}.at(now, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, err = a.at(now.Add(authorityLife*3/4), nil); err != nil || len(a.signers) != 2 {
		t.Fatalf("got %d signers, %v, want the old and the new one", len(a.signers), err)
	}
	certs, keys, err := a.text()
	if err != nil {
		t.Fatal(err)
	}
	b, err := authorityOf(certs, keys)
	if err != nil || !bytes.Equal(a.bundle(), b.bundle()) {
		t.Errorf("got another authority, %v", err)
	}
	for name, damaged := range map[string][2][]byte{
		"no key": {certs, nil}, "keys the other way round": {certs, append(bytes.Clone(keys[bytes.Index(keys[1:], []byte("-----BEGIN"))+1:]), keys...)}, "rubbish": {[]byte("x"), keys},
	} {
		if _, err := authorityOf(damaged[0], damaged[1]); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// What is made is what Envoy and pickers can use: a pair that loads, a server's certificate for its names, a client's without.
func TestLeaf(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, err := authority{}.at(now, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{"gw-picker.models.svc", "gw-picker-pods.models.svc"}, nil} {
		l, err := a.signs(now, nil).issue(names, "gw-picker-tls", now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tls.X509KeyPair(l.certPEM, l.keyPEM); err != nil {
			t.Error(err)
		}
		if got := leafOf(l.certPEM, l.keyPEM, a.bundle()); !got.fits(names, &a.signers[0], now) {
			t.Errorf("%v: what was read does not fit", names)
		}
		if l.fits([]string{"other"}, &a.signers[0], now) || l.fits(names, &a.signers[0], now.Add(leafLife*3/4)) {
			t.Errorf("%v: it fits other names, or when it is old", names)
		}
		want := "[clientAuth]"
		if names != nil {
			want = "[clientAuth serverAuth]"
		}
		if got := fmt.Sprint(l.cert.ExtKeyUsage); got != want {
			t.Errorf("%v: got the uses %s, want %s", names, got, want)
		}
	}
	if got := leafOf([]byte("x"), nil, nil); got.cert != nil {
		t.Error("got a certificate from rubbish")
	}
}
