//go:build kube

package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// keysTrial is a namespace with the keys of an extension server, and a clock.
type keysTrial struct {
	*server
	t     *testing.T
	ns    string
	ahead atomic.Int64
	log   *transcript
}

func (k *keysTrial) now() time.Time { return time.Now().Add(time.Duration(k.ahead.Load())) }

func (k *keysTrial) keys(leads bool) *ExtensionKeys {
	k.t.Helper()
	keys, err := NewExtensionKeys(k.config, ExtensionKeysOptions{Namespace: k.ns, Leads: func() bool { return leads }, Now: k.now, Log: slog.New(slog.NewTextHandler(k.log, nil))})
	if err != nil {
		k.t.Fatal(err)
	}
	return keys
}

func (k *keysTrial) secret(name string) *corev1.Secret {
	k.t.Helper()
	s := new(corev1.Secret)
	if err := k.client.Get(k.t.Context(), types.NamespacedName{Namespace: k.ns, Name: name}, s); err != nil {
		k.t.Fatal(err)
	}
	return s
}

// greet has a client shake hands with a server of keys, as Envoy Gateway does: it reads the authority, and what it shows, from
// their Secrets. It reports whether the server knows it.
func (k *keysTrial) greet(keys *ExtensionKeys, shows bool) (known bool, err error) {
	k.t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(k.secret("inference-gateway-extension-ca").Data["tls.crt"]) {
		k.t.Fatal("no authority is where Envoy Gateway looks for it")
	}
	config := &tls.Config{RootCAs: pool, ServerName: "inference-gateway-extension." + k.ns + ".svc", Time: k.now}
	if shows {
		s := k.secret("inference-gateway-extension-client")
		pair, err := tls.X509KeyPair(s.Data["tls.crt"], s.Data["tls.key"])
		if err != nil {
			k.t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	server := keys.TLS()
	server.Time = k.now
	inner := server.GetConfigForClient
	server.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := inner(h)
		if c != nil {
			c = c.Clone()
			c.Time = k.now
		}
		return c, err
	}
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	var shaken sync.WaitGroup
	s := tls.Server(there, server)
	var serverErr error
	shaken.Go(func() { serverErr = s.HandshakeContext(k.t.Context()) })
	err = tls.Client(here, config).HandshakeContext(k.t.Context())
	here.Close()
	shaken.Wait()
	if err == nil {
		err = serverErr
	}
	return len(s.ConnectionState().VerifiedChains) > 0, err
}

// TestExtensionKeys: keys are made once, by who leads; the others read them; they are renewed in good time, and at no moment
// is anybody refused; what somebody else has put there is left alone.
func TestExtensionKeys(t *testing.T) {
	s := startServer(t)
	k := &keysTrial{server: s, t: t, ns: "extension-keys", log: new(transcript)}
	if err := s.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: k.ns}}); err != nil {
		t.Fatal(err)
	}
	turn := func(keys *ExtensionKeys) {
		t.Helper()
		if err := keys.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	leader, other := k.keys(true), k.keys(false)
	turn(other)
	if other.Authority() != nil {
		t.Error("who does not lead has made keys")
	}
	if _, err := other.TLS().GetConfigForClient(nil); err == nil {
		t.Error("got a certificate out of nothing")
	}
	turn(leader)
	turn(other)
	both := func(when string) {
		t.Helper()
		for name, keys := range map[string]*ExtensionKeys{"leader": leader, "other": other} {
			for _, shows := range []bool{true, false} {
				if known, err := k.greet(keys, shows); err != nil || known != shows {
					t.Errorf("%s, %s, shows a certificate %t: got known %t, %v", when, name, shows, known, err)
				}
			}
		}
	}
	both("at first")
	first := k.secret(secretExtServer)
	if first.Data["tls.key"] == nil || k.secret(secretExtTrusted).Data["tls.key"] != nil {
		t.Error("a key is missing, or where everybody looks")
	}
	turn(leader)
	if k.secret(secretExtServer).ResourceVersion != first.ResourceVersion {
		t.Error("what is in order was written again")
	}

	// Two years and a half, in steps of a week: everything is renewed several times.
	seen := make(map[string]bool)
	for week := range 130 {
		k.ahead.Store(int64(time.Duration(week) * 7 * 24 * time.Hour))
		turn(leader)
		both(fmt.Sprintf("in week %d, before the other has looked", week))
		turn(other)
		both(fmt.Sprintf("in week %d", week))
		seen[string(k.secret(secretExtServer).Data["tls.crt"])] = true
	}
	if n := len(seen); n < 10 || n > 30 {
		t.Errorf("got %d certificates in two years and a half, want one in two months", n)
	}

	// One that is damaged is made anew.
	damaged := k.secret(secretExtServer)
	damaged.Data["tls.crt"] = []byte("nothing")
	if err := s.client.Update(t.Context(), damaged); err != nil {
		t.Fatal(err)
	}
	turn(leader)
	turn(other)
	both("after damage")

	// Two that both think they lead: one is refused, and nothing is lost.
	if err := s.client.Delete(t.Context(), k.secret(secretExtension)); err != nil {
		t.Fatal(err)
	}
	second := k.keys(true)
	var turns sync.WaitGroup
	errs := make([]error, 2)
	for i, keys := range []*ExtensionKeys{leader, second} {
		turns.Go(func() { errs[i] = keys.turn(t.Context()) })
	}
	turns.Wait()
	for range 3 {
		turn(leader)
		turn(second)
		turn(other)
	}
	both("after two leaders")

	strange := k.secret(secretExtTrusted)
	strange.Labels = nil
	if err := s.client.Update(t.Context(), strange); err != nil {
		t.Fatal(err)
	}
	if err := leader.turn(t.Context()); err == nil || !strings.Contains(err.Error(), "somebody else's") {
		t.Errorf("got %v, want somebody else's Secret left alone", err)
	}

	// What ends, ends.
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { leader.Run(ctx); close(done) }()
	cancel()
	<-done
	if !slices.ContainsFunc(errs, func(err error) bool { return err == nil }) {
		t.Errorf("got %v, want one of two leaders to succeed", errs)
	}
}
