package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/translate"
)

// ExtensionService is what the Service of the extension server is called, whose name its certificate has. The Secrets with
// the keys are called after it: the authority's own, which nobody else reads; the server's; with the authority alone, under the
// key by which Envoy Gateway looks for one; and the one that Envoy Gateway shows.
const (
	ExtensionService  = "inference-gateway-extension"
	secretExtension   = ExtensionService + "-authority"
	secretExtServer   = ExtensionService + "-tls"
	secretExtTrusted  = ExtensionService + "-ca"
	secretExtEnvoyGwy = ExtensionService + "-client"
)

// How often keys are looked at: until there are some, and then.
const (
	keysEarly = time.Second
	keysLate  = 10 * time.Minute
)

// ExtensionKeysOptions say where the keys are kept, and who makes them.
type ExtensionKeysOptions struct {
	// Namespace is the system namespace.
	Namespace string
	// Leads reports whether this replica makes keys; the others read them.
	Leads func() bool
	// Now is the time of day, by which certificates end.
	Now func() time.Time
	Log *slog.Logger
}

// ExtensionKeys are the certificates between Envoy Gateway, Envoys and the extension server. They are made here, since a
// chart that is rendered anew at each sync would make others each time, and are renewed in good time; everyone reads them
// again by itself. Methods may be called by any goroutine.
type ExtensionKeys struct {
	o       ExtensionKeysOptions
	api     client.Client
	current atomic.Pointer[extensionPair]
}

// extensionPair is what a server shows, and by whom it and those who call it are known.
type extensionPair struct {
	config    *tls.Config
	authority []byte
}

// NewExtensionKeys makes one that reaches its API server as config says. It asks it nothing before Run.
func NewExtensionKeys(config *rest.Config, o ExtensionKeysOptions) (*ExtensionKeys, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("cannot read core kinds: %w", err)
	}
	own := rest.CopyConfig(config)
	own.QPS = -1
	own.WarningHandlerWithContext = rest.NoWarnings{}
	api, err := client.New(own, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("cannot make a client of the API server %s: %w", config.Host, err)
	}
	return &ExtensionKeys{o: o, api: api}, nil
}

// TLS is what a server is given once and for all: each handshake has what is current then. Before there is anything,
// handshakes fail, and whoever calls tries again. Callers need not show a certificate; one that is shown must be of our
// authority.
func (k *ExtensionKeys) TLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: x509.NewCertPool(),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			if p := k.current.Load(); p != nil {
				return p.config, nil
			}
			return nil, errors.New("there is no certificate yet")
		}}
}

// Authority is what those who call check the server by, nil before there is anything.
func (k *ExtensionKeys) Authority() []byte {
	if p := k.current.Load(); p != nil {
		return p.authority
	}
	return nil
}

// Run reads keys, and makes them where this replica leads, until ctx ends.
func (k *ExtensionKeys) Run(ctx context.Context) {
	said := ""
	for {
		pause := keysLate
		switch err := k.turn(ctx); {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause = keysEarly
			if text := err.Error(); text != said {
				k.o.Log.Warn("the keys of the extension server are not whole: it is tried again", "error", text)
				said = text
			}
		case k.current.Load() == nil:
			pause = keysEarly
		default:
			said = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// extensionRing is what is in the Secrets.
type extensionRing struct {
	there     map[string]*corev1.Secret
	authority authority
}

// wanted are the certificates that the authority signs, by Secret, with the names that they are for.
func (k *ExtensionKeys) wanted() map[string][]string {
	host := ExtensionService + "." + k.o.Namespace + ".svc"
	return map[string][]string{secretExtServer: {host, host + ".cluster.local"}, secretExtEnvoyGwy: nil}
}

// turn looks once.
func (k *ExtensionKeys) turn(ctx context.Context) error {
	r, err := k.read(ctx)
	if err != nil {
		return err
	}
	if k.o.Leads() {
		if err := k.renew(ctx, r); err != nil {
			return err
		}
	}
	s := r.there[secretExtServer]
	if s == nil {
		return nil
	}
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("cannot use Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	bundle := s.Data[entryCA]
	if p := k.current.Load(); p != nil && bytes.Equal(p.authority, bundle) && bytes.Equal(p.config.Certificates[0].Certificate[0], pair.Certificate[0]) {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return fmt.Errorf("cannot use Secret %s/%s: there is no certificate in %s", s.Namespace, s.Name, entryCA)
	}
	k.current.Store(&extensionPair{authority: bundle, config: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, NextProtos: []string{"h2"}}})
	k.o.Log.Info("the extension server shows another certificate", "until", pair.Leaf.NotAfter)
	return nil
}

// read gets all Secrets that there are.
func (k *ExtensionKeys) read(ctx context.Context) (*extensionRing, error) {
	r := &extensionRing{there: make(map[string]*corev1.Secret)}
	for _, name := range []string{secretExtension, secretExtServer, secretExtTrusted, secretExtEnvoyGwy} {
		s := new(corev1.Secret)
		switch err := k.api.Get(ctx, types.NamespacedName{Namespace: k.o.Namespace, Name: name}, s); {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("cannot read Secret %s/%s: %w", k.o.Namespace, name, err)
		case s.Labels[translate.LabelManagedBy] != translate.ManagedBy:
			return nil, fmt.Errorf("cannot use Secret %s/%s: it is somebody else's: delete it", k.o.Namespace, name)
		}
		r.there[name] = s
	}
	if s := r.there[secretExtension]; s != nil {
		var err error
		if r.authority, err = authorityOf(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
			k.o.Log.Error("the authority of the extension server is damaged: another one is made, and everything is signed anew", "error", err)
		}
	}
	return r, nil
}

// renew makes what is missing or old: the authority before what it signs, and what it is known by before that is shown.
func (k *ExtensionKeys) renew(ctx context.Context, r *extensionRing) error {
	now := k.o.Now()
	leaves, in := make(map[string]leaf), []leaf(nil)
	for name := range k.wanted() {
		if s := r.there[name]; s != nil {
			if l := leafOf(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey], s.Data[entryCA]); l.cert != nil && l.cert.NotAfter.After(now) {
				leaves[name] = l
				in = append(in, l)
			}
		}
	}
	next, err := r.authority.turn(now, in)
	if err != nil {
		return err
	}
	certs, keys, err := next.text()
	if err != nil {
		return err
	}
	bundle := next.bundle()
	if err := k.write(ctx, r, secretExtension, map[string][]byte{corev1.TLSCertKey: certs, corev1.TLSPrivateKeyKey: keys}); err != nil {
		return err
	}
	if err := k.write(ctx, r, secretExtTrusted, map[string][]byte{corev1.TLSCertKey: bundle}); err != nil {
		return err
	}
	by := next.signs(now, in)
	for name, names := range k.wanted() {
		l := leaves[name]
		if !l.fits(names, by, now) {
			if l, err = by.issue(names, name, now); err != nil {
				return err
			}
		}
		if err := k.write(ctx, r, name, map[string][]byte{corev1.TLSCertKey: l.certPEM, corev1.TLSPrivateKeyKey: l.keyPEM, entryCA: bundle}); err != nil {
			return err
		}
	}
	return nil
}

// write puts data into a Secret, if it has others. Of two replicas that both think they lead, one is refused.
func (k *ExtensionKeys) write(ctx context.Context, r *extensionRing, name string, data map[string][]byte) error {
	s, there := r.there[name]
	if there && maps.EqualFunc(s.Data, data, bytes.Equal) {
		return nil
	}
	var err error
	if there {
		before := s.DeepCopy()
		s.Data = data
		err = k.api.Patch(ctx, s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	} else {
		s = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.o.Namespace, Name: name, Labels: map[string]string{translate.LabelManagedBy: translate.ManagedBy}},
			Type: corev1.SecretTypeOpaque, Data: data}
		err = k.api.Create(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("cannot write Secret %s/%s: %w", k.o.Namespace, name, err)
	}
	r.there[name] = s
	return nil
}
