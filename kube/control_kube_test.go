//go:build kube

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// need ends a test whose means fail.
func need(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// transcript is a log that a test reads while it is written.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// moduleDir is where Go keeps a module, in the version that a module of test/cluster/tools names.
func moduleDir(t *testing.T, tool, module string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	c.Dir = filepath.Join("../test/cluster/tools", tool)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("cannot download module %q: %v: %s", module, err, out)
	}
	var m struct{ Dir string }
	need(t, json.Unmarshal(out, &m))
	return m.Dir
}

// server is an API server with every definition that a plan may need, and what else runs in a cluster left out: no
// Deployment gets pods, nothing is collected with its owner, and no Envoy Gateway says anything.
type server struct {
	config *rest.Config
	client client.Client
}

func startServer(t *testing.T) *server {
	t.Helper()
	log.SetLogger(logr.Discard()) // what goes wrong is an error, too
	env := &envtest.Environment{
		CRDDirectoryPaths: []string{"../deploy/crds", filepath.Join(moduleDir(t, "definitions", "sigs.k8s.io/gateway-api"), "config/crd/standard"),
			filepath.Join(moduleDir(t, "definitions", "sigs.k8s.io/gateway-api-inference-extension"), "config/crd/bases"),
			filepath.Join(moduleDir(t, "envoy-gateway", "github.com/envoyproxy/gateway"), "charts/gateway-helm/charts/crds/crds/generated")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 3 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	config, err := env.Start()
	need(t, err)
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, eventsv1.AddToScheme, admissionv1.AddToScheme,
		gatewayv1.Install, v1alpha1.AddToScheme, apiextensionsv1.AddToScheme} {
		need(t, add(scheme))
	}
	config.QPS = -1
	c, err := client.New(config, client.Options{Scheme: scheme})
	need(t, err)
	return &server{config, c}
}

// calls counts requests to the API server, those about the Lease left out, and lets a test stand in their way.
type calls struct {
	reads, writes atomic.Int64
	// stand is asked about each request; an error is what comes of it.
	stand atomic.Pointer[func(r *http.Request) error]
	// gone: nothing gets through, not even what is about the Lease.
	gone atomic.Bool
}

// passing is a function as a transport.
type passing func(r *http.Request) (*http.Response, error)

func (f passing) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// wrap has requests counted on their way.
func (c *calls) wrap(next http.RoundTripper) http.RoundTripper {
	return passing(func(r *http.Request) (*http.Response, error) {
		if c.gone.Load() {
			return nil, errors.New("the API server is gone")
		}
		if strings.Contains(r.URL.Path, "/leases") {
			return next.RoundTrip(r)
		}
		if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews") {
			c.reads.Add(1)
		} else {
			c.writes.Add(1)
		}
		if f := c.stand.Load(); f != nil {
			if err := (*f)(r); err != nil {
				return nil, err
			}
		}
		return next.RoundTrip(r)
	})
}

// stage is a Controller at work in namespaces of its own.
type stage struct {
	*server
	t              *testing.T
	system, models string
	calls          *calls
	log            *transcript
	clock          atomic.Int64 // nanoseconds that the controller's clock is ahead
	*Controller
	stop  func()
	times atomic.Int64 // that the picker was asked
}

// script changes how a Controller is started.
type script struct {
	as       string // whom it is impersonated as
	identity string
	// classOwner is whose GatewayClass is made; nobody's if it is empty.
	classOwner string
	settings   func(*translate.Settings)
	lease, ask time.Duration
}

// newStage makes two namespaces, and starts nothing.
func (s *server) newStage(t *testing.T, name string) *stage {
	t.Helper()
	g := &stage{server: s, t: t, system: name + "-system", models: name + "-models"}
	for _, ns := range []string{g.system, g.models} {
		need(t, s.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	}
	return g
}

// play starts a Controller. It ends with the test, and what it has made goes before.
func (g *stage) play(o script) {
	g.t.Helper()
	g.log, g.calls = new(transcript), new(calls)
	config := rest.CopyConfig(g.server.config)
	if o.as != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: o.as}
	}
	config.Wrap(g.calls.wrap)
	settings := translate.Settings{SystemNamespace: g.system, Image: "sluice:test", Extension: true}
	if o.settings != nil {
		o.settings(&settings)
	}
	if o.identity == "" {
		o.identity = "one"
	}
	if o.lease == 0 {
		o.lease = 8 * time.Second
	}
	var err error
	g.Controller, err = NewController(config, ControlOptions{Settings: settings, ClassOwner: o.classOwner, Identity: o.identity, Lease: o.lease, Ask: cmp.Or(o.ask, time.Second),
		Now: func() time.Time { return time.Now().Add(time.Duration(g.clock.Load())) },
		Log: slog.New(slog.NewTextHandler(g.log, nil)), Registerer: prometheus.NewRegistry()})
	need(g.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.Controller.Run(ctx); err != nil {
			g.t.Error(err)
		}
	}()
	g.stop = sync.OnceFunc(func() { cancel(); <-ended })
	g.t.Cleanup(g.stop)
}

// eventually waits until f has no complaint.
func (g *stage) eventually(what string, f func() error) {
	g.t.Helper()
	end := time.After(60 * time.Second)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-look.C:
		case <-end:
			g.t.Fatalf("waited in vain until %s: %v; log:\n%s", what, err, g.log)
		}
	}
}

// document applies YAML, in the models' namespace where it names none.
func (g *stage) document(text string) *unstructured.Unstructured {
	g.t.Helper()
	u := g.parse(text)
	need(g.t, g.server.client.Create(g.t.Context(), u))
	return u
}

func (g *stage) parse(text string) *unstructured.Unstructured {
	g.t.Helper()
	u := new(unstructured.Unstructured)
	need(g.t, yaml.Unmarshal([]byte(text), &u.Object))
	if u.GetNamespace() == "" {
		u.SetNamespace(g.models)
	}
	return u
}

// gateway creates a configuration of schedulers, by name, each for the pods with the label app of its name.
func (g *stage) gateway(name, more string, schedulers ...string) {
	g.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: inference.sagemaker.aws.amazon.com/v1alpha1\nkind: InferenceGatewayConfig\nmetadata: {name: %s}\nspec:\n  bbr: {enabled: %t}\n%s  schedulers:\n", name, len(schedulers) > 1, more)
	for _, s := range schedulers {
		fmt.Fprintf(&b, "  - {name: %s, modelName: model/%s, modelSelector: {matchLabels: {app: %s}}}\n", s, s, s)
	}
	g.document(b.String())
}

// stored reads a configuration.
func (g *stage) stored(name string) (*v1alpha1.InferenceGatewayConfig, error) {
	c := new(v1alpha1.InferenceGatewayConfig)
	return c, g.server.client.Get(g.t.Context(), types.NamespacedName{Namespace: g.models, Name: name}, c)
}

// edit changes a configuration, and returns it.
func (g *stage) edit(name string, change func(*v1alpha1.InferenceGatewayConfig)) *v1alpha1.InferenceGatewayConfig {
	g.t.Helper()
	var c *v1alpha1.InferenceGatewayConfig
	g.eventually(name+" is changed", func() (err error) {
		if c, err = g.stored(name); err != nil {
			return err
		}
		change(c)
		return g.server.client.Update(g.t.Context(), c)
	})
	return c
}

// touch has a configuration looked at.
func (g *stage) touch(name string) {
	g.t.Helper()
	g.edit(name, func(c *v1alpha1.InferenceGatewayConfig) {
		c.Annotations = map[string]string{"again": time.Now().String()}
	})
}

// says waits until a configuration's condition has a status, a reason and words.
func (g *stage) says(name, condition string, status metav1.ConditionStatus, reason, words string) {
	g.t.Helper()
	g.eventually(fmt.Sprintf("%s of %s is %s for %s", condition, name, status, reason), func() error {
		c, err := g.stored(name)
		if err != nil {
			return err
		}
		for _, has := range c.Status.Conditions {
			if has.Type == condition {
				if has.Status == status && has.Reason == reason && strings.Contains(has.Message, words) {
					return nil
				}
				return fmt.Errorf("it is %s for %s: %s", has.Status, has.Reason, has.Message)
			}
		}
		return errors.New("there is no such condition")
	})
}

// made are all objects that were made for a configuration, with their versions.
func (g *stage) made(name string) map[objectKey]string {
	g.t.Helper()
	out := make(map[objectKey]string)
	for _, k := range append(madeKinds(), secretKind()) {
		if k.Version == "v1alpha3" {
			continue
		}
		list := new(metav1.PartialObjectMetadataList)
		list.SetGroupVersionKind(listOf(k.GroupVersionKind))
		if err := g.server.client.List(g.t.Context(), list, client.MatchingLabels{translate.LabelManagedBy: translate.ManagedBy}); err != nil {
			continue // not every kind is there
		}
		for _, o := range list.Items {
			if o.Annotations[translate.AnnotationOwner] == g.models+"/"+name {
				out[objectKey{k.Kind, o.Namespace, o.Name}] = o.ResourceVersion
			}
		}
	}
	return out
}

// becomes plays what else runs in a cluster for a configuration: its Deployments are rolled out, its Gateway and its routes
// are programmed; only what is of one of some kinds, where any are named.
func (g *stage) becomes(name string, kinds ...string) {
	g.t.Helper()
	for key := range g.made(name) {
		if len(kinds) > 0 && !slices.Contains(kinds, key.kind) {
			continue
		}
		switch key.kind {
		case kindDeployment:
			g.rollsOut(types.NamespacedName{Namespace: key.namespace, Name: key.name}, -1)
		case kindGateway:
			o := new(gatewayv1.Gateway)
			g.patch(key, o, func() {
				o.Status.Conditions = conditions(o.Generation, "Accepted", "Programmed")
			})
		case kindRoute:
			o := new(gatewayv1.HTTPRoute)
			g.patch(key, o, func() {
				o.Status.Parents = []gatewayv1.RouteParentStatus{{ParentRef: o.Spec.ParentRefs[0], ControllerName: "gateway.envoyproxy.io/gatewayclass-controller",
					Conditions: conditions(o.Generation, "Accepted", "ResolvedRefs")}}
			})
		}
	}
}

// rollsOut has copies of a Deployment available, all of them where n is negative.
func (g *stage) rollsOut(at types.NamespacedName, n int32) {
	g.t.Helper()
	o := new(appsv1.Deployment)
	g.patch(objectKey{kindDeployment, at.Namespace, at.Name}, o, func() {
		if n < 0 {
			n = *o.Spec.Replicas
		}
		o.Status = appsv1.DeploymentStatus{ObservedGeneration: o.Generation, Replicas: *o.Spec.Replicas, UpdatedReplicas: *o.Spec.Replicas, ReadyReplicas: n, AvailableReplicas: n}
		if n == *o.Spec.Replicas {
			o.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}}
		}
	})
}

// patch changes an object's status.
func (g *stage) patch(key objectKey, o client.Object, change func()) {
	g.t.Helper()
	need(g.t, g.server.client.Get(g.t.Context(), types.NamespacedName{Namespace: key.namespace, Name: key.name}, o))
	before, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		g.t.Fatalf("cannot change %s", key)
	}
	change()
	need(g.t, g.server.client.Status().Patch(g.t.Context(), o, client.MergeFrom(before)))
}

func conditions(generation int64, kinds ...string) (list []metav1.Condition) {
	for _, k := range kinds {
		list = append(list, metav1.Condition{Type: k, Status: metav1.ConditionTrue, Reason: k, ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(time.Unix(1000, 0))})
	}
	return list
}

// pod creates one that is ready.
func (g *stage) pod(name, address string, port int32, labels map[string]string) *corev1.Pod {
	g.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.models, Name: name, Labels: labels}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: port}}}}}}
	need(g.t, g.server.client.Create(g.t.Context(), p))
	g.patch(objectKey{kindPod, g.models, name}, p, func() {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	})
	return p
}

// removed waits until a configuration and everything that was made for it is gone.
func (g *stage) removed(name string) {
	g.t.Helper()
	c, err := g.stored(name)
	if err == nil {
		need(g.t, client.IgnoreNotFound(g.server.client.Delete(g.t.Context(), c)))
	}
	g.eventually("everything of "+name+" is gone", func() error {
		if left := g.made(name); len(left) > 0 {
			return fmt.Errorf("there are still %v", left)
		}
		if c, err := g.stored(name); err == nil {
			return fmt.Errorf("it is there, with %v", c.Finalizers)
		}
		return nil
	})
}

// settled waits until nothing is written any more for a second, and returns how many writes there were.
func (g *stage) settled() int64 {
	g.t.Helper()
	last, since := g.calls.writes.Load(), time.Now()
	g.eventually("nothing is written any more", func() error {
		if n := g.calls.writes.Load(); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return fmt.Errorf("%d writes", last)
		}
		return nil
	})
	return last
}
