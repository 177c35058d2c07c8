package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// annotationIssued is on an authority's Secret: where the certificates are that it has signed, as NAMESPACE/NAME with commas.
// By it they are found again when they are not needed any more, since nobody may list the Secrets of a cluster.
const annotationIssued = "gateway.sluice.dev/issued"

// entryCA is where the authorities stand beside a certificate.
const entryCA = "ca.crt"

// How long what was read of Secrets is gone by: longer while all is well.
const (
	keysCalm   = 10 * time.Minute
	keysUneasy = 10 * time.Second
)

// keyring keeps the keys of all configurations. They are made here and are nowhere but in Secrets.
type keyring struct {
	mu    sync.Mutex
	rings map[types.NamespacedName]*ring
}

// ring is what was read of one configuration's keys.
type ring struct {
	authority authority
	issued    []types.NamespacedName
	leaves    map[types.NamespacedName]leaf
	strange   map[types.NamespacedName]bool // Secrets of someone else
	foreign   bool                          // so is the authority's own
	there     map[types.NamespacedName]*corev1.Secret
	wanted    []translate.Certificate
	read      time.Time
	until     time.Time
}

func (k *keyring) ring(key types.NamespacedName) *ring {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rings[key]
}

func (k *keyring) keep(key types.NamespacedName, r *ring) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r == nil {
		delete(k.rings, key)
		return
	}
	k.rings[key] = r
}

// hold sees to it that every certificate of a plan is where it is needed and will be for a while. calm: nothing hints at
// one that is gone. It returns what the authorities' ConfigMaps should be, what can't be had, and when to look again.
func (t *turn) hold(ctx context.Context, config *v1alpha1.InferenceGatewayConfig, plan *translate.Plan, calm bool) (beside []*unstructured.Unstructured, refused []translate.Refusal, next time.Time, err error) {
	key, now := client.ObjectKeyFromObject(config), t.options.Now()
	r := t.keys.ring(key)
	patience := keysCalm
	if !calm {
		patience = keysUneasy
	}
	if r == nil || now.Sub(r.read) >= patience || !now.Before(r.until) || !slices.EqualFunc(r.wanted, plan.Certificates, sameCertificate) {
		t.keys.keep(key, nil)
		switch r, err = t.renew(ctx, config, plan.Certificates, now); {
		case err != nil && denied(err):
			return nil, []translate.Refusal{{Object: "Secrets of the gateway", Message: err.Error()}}, now.Add(retryRefused), nil
		case err != nil:
			return nil, nil, now, err
		}
		t.keys.keep(key, r)
	}
	bundle := r.authority.bundle()
	for _, c := range plan.Certificates {
		place := placeOf(&c)
		switch {
		case r.foreign:
			refused = append(refused, translate.Refusal{Object: "Secret " + place.String(), Message: fmt.Sprintf("not made: the authority's own, Secret %s/%s, is there and belongs to someone else: delete it", t.options.Settings.SystemNamespace, translate.AuthorityOf(config))})
			continue
		case r.strange[place]:
			refused = append(refused, translate.Refusal{Object: "Secret " + place.String(), Message: "is there and belongs to someone else: it is left alone; delete it, or choose another name"})
		}
		if c.ConfigMap == "" {
			continue
		}
		m := &corev1.ConfigMap{ObjectMeta: translate.Metadata(config, c.Namespace, c.ConfigMap), Data: map[string]string{entryCA: string(bundle)}}
		u, err := treeOf(m, mapKind())
		if err != nil {
			return nil, nil, now, err
		}
		beside = append(beside, u)
	}
	if again := r.read.Add(patience); again.Before(r.until) {
		return beside, refused, again, nil // nobody tells of Secrets in other namespaces
	}
	return beside, refused, r.until, nil
}

func sameCertificate(a, b translate.Certificate) bool {
	return a.Namespace == b.Namespace && a.Secret == b.Secret && a.ConfigMap == b.ConfigMap && slices.Equal(a.Names, b.Names)
}

func placeOf(c *translate.Certificate) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: c.Secret}
}

// renew reads the keys of a configuration, makes those that are missing or old, and writes what is new: the authority first,
// so that nothing is signed by one that might be lost.
func (t *turn) renew(ctx context.Context, config *v1alpha1.InferenceGatewayConfig, wanted []translate.Certificate, now time.Time) (*ring, error) {
	r, err := t.readRing(ctx, config, wanted, now)
	if err != nil || r.foreign || len(wanted) == 0 && len(r.issued) == 0 {
		return r, err
	}
	in := r.inUse(now)
	next, err := r.authority.at(now, in)
	if err != nil {
		return nil, err
	}
	issued := slices.Clone(r.issued)
	for _, c := range wanted {
		if place := placeOf(&c); !slices.Contains(issued, place) && !r.strange[place] {
			issued = append(issued, place)
		}
	}
	if !bytes.Equal(next.bundle(), r.authority.bundle()) || len(issued) != len(r.issued) {
		if err := t.writeAuthority(ctx, config, r, next, issued); err != nil {
			return nil, err
		}
	}
	by := next.signs(now, in)
	r.authority, r.issued = next, issued
	if err := t.sign(ctx, config, r, by, now); err != nil {
		return nil, err
	}
	r.until = next.ends(now, r.inUse(now))
	return r, nil
}

// inUse are the certificates that someone may show.
func (r *ring) inUse(now time.Time) (in []leaf) {
	for _, l := range r.leaves {
		if l.cert != nil && l.cert.NotAfter.After(now) {
			in = append(in, l)
		}
	}
	return in
}

// readRing reads an authority, and the certificates that are wanted.
func (t *turn) readRing(ctx context.Context, config *v1alpha1.InferenceGatewayConfig, wanted []translate.Certificate, now time.Time) (*ring, error) {
	r := &ring{wanted: wanted, read: now, until: now.Add(keysCalm), leaves: make(map[types.NamespacedName]leaf), strange: make(map[types.NamespacedName]bool),
		there: make(map[types.NamespacedName]*corev1.Secret)}
	key := client.ObjectKeyFromObject(config)
	root := types.NamespacedName{Namespace: t.options.Settings.SystemNamespace, Name: translate.AuthorityOf(config)}
	s, err := t.secret(ctx, root)
	if err != nil {
		return nil, err
	}
	if s != nil {
		r.there[root] = s
		if owner, ok := ownerOf(s); !ok || owner != key {
			r.foreign = true
			return r, nil
		}
		r.issued = issuedOf(s)
		if r.authority, err = authorityOf(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
			t.log.Error("an authority's Secret is damaged: another one is made, and all certificates of the gateway are signed anew", "gateway", key.String(), "secret", root.String(), "error", err)
		}
	}
	secrets := make([]*corev1.Secret, len(wanted))
	if err := each(len(wanted), func(i int) (err error) {
		secrets[i], err = t.secret(ctx, placeOf(&wanted[i]))
		return err
	}); err != nil {
		return nil, err
	}
	for i, s := range secrets {
		if s == nil {
			continue
		}
		place := placeOf(&wanted[i])
		r.there[place] = s
		if owner, ok := ownerOf(s); !ok || owner != key {
			r.strange[place] = true
			continue
		}
		r.leaves[place] = leafOf(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey], s.Data[entryCA])
	}
	return r, nil
}

// secret is one, nil if there is none.
func (t *turn) secret(ctx context.Context, at types.NamespacedName) (*corev1.Secret, error) {
	s := new(corev1.Secret)
	switch err := t.client.Get(ctx, at, s); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read Secret %s: %w", at, err)
	}
	return s, nil
}

// issuedOf are the places of certificates that an authority has signed.
func issuedOf(s *corev1.Secret) []types.NamespacedName {
	var list []types.NamespacedName
	for text := range strings.SplitSeq(s.Annotations[annotationIssued], ",") {
		if namespace, name, ok := strings.Cut(text, "/"); ok {
			list = append(list, types.NamespacedName{Namespace: namespace, Name: name})
		}
	}
	return list
}

// writeAuthority writes an authority, and where what it signs is.
func (t *turn) writeAuthority(ctx context.Context, config *v1alpha1.InferenceGatewayConfig, r *ring, a authority, issued []types.NamespacedName) error {
	certs, keys, err := a.text()
	if err != nil {
		return err
	}
	s := &corev1.Secret{ObjectMeta: translate.Metadata(config, t.options.Settings.SystemNamespace, translate.AuthorityOf(config)), Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{corev1.TLSCertKey: certs, corev1.TLSPrivateKeyKey: keys}}
	s.OwnerReferences = nil // it is the last to go
	places := make([]string, len(issued))
	for i, at := range issued {
		places[i] = at.String()
	}
	s.Annotations[annotationIssued] = strings.Join(places, ",")
	return t.writeSecret(ctx, s, r)
}

// sign writes those certificates that are missing, old, of another signer, or beside authorities that are no longer all.
func (t *turn) sign(ctx context.Context, config *v1alpha1.InferenceGatewayConfig, r *ring, by *signer, now time.Time) error {
	bundle := r.authority.bundle()
	leaves := make([]leaf, len(r.wanted))
	err := each(len(r.wanted), func(i int) (err error) {
		c := &r.wanted[i]
		place := placeOf(c)
		l := r.leaves[place]
		fits := l.fits(c.Names, by, now)
		if leaves[i] = l; r.strange[place] || fits && bytes.Equal(l.bundle, bundle) {
			return nil
		}
		if !fits {
			if l, err = by.issue(c.Names, c.Secret, now); err != nil {
				return err
			}
		}
		l.bundle = bundle
		s := &corev1.Secret{ObjectMeta: translate.Metadata(config, c.Namespace, c.Secret), Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: l.certPEM, corev1.TLSPrivateKeyKey: l.keyPEM, entryCA: bundle}}
		leaves[i] = l
		return t.writeSecret(ctx, s, r)
	})
	for i := range r.wanted {
		if place := placeOf(&r.wanted[i]); leaves[i].cert != nil && !r.strange[place] {
			r.leaves[place] = leaves[i]
		}
	}
	return err
}

// writeSecret applies a Secret over the one that was read.
func (t *turn) writeSecret(ctx context.Context, s *corev1.Secret, r *ring) error {
	u, err := treeOf(s, secretKind())
	if err != nil {
		return err
	}
	options := []client.ApplyOption{client.FieldOwner(fieldManager)}
	if there := r.there[client.ObjectKeyFromObject(s)]; there != nil {
		u.SetUID(there.UID)
		options = append(options, client.ForceOwnership)
	}
	if err := t.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return fmt.Errorf("cannot write Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	t.metrics.writes.WithLabelValues(writeApply).Inc()
	return nil
}

// treeOf is an object as it is applied.
func treeOf(o client.Object, k kind) (*unstructured.Unstructured, error) {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("cannot write down %s %s/%s: %w", k.Kind, o.GetNamespace(), o.GetName(), err)
	}
	delete(tree, "status")
	u := &unstructured.Unstructured{Object: tree}
	u.SetGroupVersionKind(k.GroupVersionKind)
	unstructured.RemoveNestedField(tree, "metadata", "creationTimestamp")
	if data, ok := tree["data"].(map[string]any); ok {
		for name, v := range data {
			if raw, isBytes := v.([]byte); isBytes {
				data[name] = base64.StdEncoding.EncodeToString(raw)
			}
		}
	}
	return u, nil
}

// forgetKeys removes those certificates of a configuration that its plan has no longer.
func (t *turn) forgetKeys(ctx context.Context, config *v1alpha1.InferenceGatewayConfig, plan *translate.Plan) error {
	key := client.ObjectKeyFromObject(config)
	r := t.keys.ring(key)
	if r == nil || r.foreign {
		return nil
	}
	keep := make(map[types.NamespacedName]bool)
	for i := range plan.Certificates {
		keep[placeOf(&plan.Certificates[i])] = true
	}
	left := make(map[types.NamespacedName]bool)
	for _, at := range r.issued {
		if keep[at] {
			left[at] = true
			continue
		}
		if err := t.removeSecret(ctx, key, at); err != nil {
			return err
		}
	}
	if len(left) == len(r.issued) {
		return nil
	}
	issued := slices.SortedFunc(maps.Keys(left), func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) })
	if err := t.writeAuthority(ctx, config, r, r.authority, issued); err != nil {
		return err
	}
	r.issued = issued
	return nil
}

// removeSecret removes a Secret that is a configuration's.
func (t *turn) removeSecret(ctx context.Context, key types.NamespacedName, at types.NamespacedName) error {
	s, err := t.secret(ctx, at)
	if err != nil || s == nil {
		return err
	}
	if owner, ok := ownerOf(s); !ok || owner != key {
		return nil
	}
	return t.remove(ctx, secretKind().GroupVersionKind, s)
}

// clearKeys removes all keys of a configuration that is gone, the authority last, which knows where the others are.
func (t *turn) clearKeys(ctx context.Context, key types.NamespacedName) error {
	config := new(v1alpha1.InferenceGatewayConfig)
	config.Namespace, config.Name = key.Namespace, key.Name
	root := types.NamespacedName{Namespace: t.options.Settings.SystemNamespace, Name: translate.AuthorityOf(config)}
	t.keys.keep(key, nil)
	s, err := t.secret(ctx, root)
	if err != nil || s == nil {
		return err
	}
	var faults []error
	for _, at := range issuedOf(s) {
		faults = append(faults, t.removeSecret(ctx, key, at))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return t.removeSecret(ctx, key, root)
}
