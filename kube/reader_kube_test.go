//go:build kube

package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// startAPIServer starts a real one, with a client that may do everything.
func startAPIServer(t *testing.T) (*envtest.Environment, client.Client) {
	t.Helper()
	log.SetLogger(logr.Discard()) // what goes wrong is an error, too
	env := &envtest.Environment{ControlPlaneStartTimeout: 3 * time.Minute, ControlPlaneStopTimeout: time.Minute}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return env, c
}

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// killAPIServer ends the API server of this test as a crash does, and returns what starts it anew, as it was. Package envtest
// would give a new one other certificates.
func killAPIServer(t *testing.T) (restart func()) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	must(t, err)
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		_, after, named := strings.Cut(string(stat), "(kube-apiserver) ")
		if fields := strings.Fields(after); err != nil || !named || fields[1] != strconv.Itoa(os.Getpid()) {
			continue // it has ended, or is another
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		must(t, err)
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		must(t, err)
		args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		return func() {
			again := exec.Command(args[0], args[1:]...)
			must(t, again.Start())
			t.Cleanup(func() {
				must(t, again.Process.Kill())
				_ = again.Wait() // it was killed
			})
		}
	}
	t.Fatal("no API server is a child of this process")
	return nil
}

// rig is a Reader at work, as a user with a name, and what it said.
type rig struct {
	*Reader
	log  *logBuffer
	stop func()
}

func newRig(t *testing.T, api *rest.Config) *rig {
	t.Helper()
	r := &rig{log: new(logBuffer)}
	var err error
	r.Reader, err = NewReader(ReaderOptions{API: api, Namespace: "models", FileNamespace: "models", FileName: "demo-picker", FileKey: "gateway.yaml",
		Log: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(r.stop)
	return r
}

// within waits until f holds, looking after each news, and once more at the end.
func (r *rig) within(t *testing.T, limit time.Duration, what string, f func() bool) {
	t.Helper()
	end := time.After(limit)
	look := time.NewTicker(50 * time.Millisecond) // for what is no news, such as a missing right
	defer look.Stop()
	for !f() {
		select {
		case <-r.News():
		case <-look.C:
		case <-end:
			t.Fatalf("waited %s in vain until %s; why: %v; log:\n%s", limit, what, r.Why(), r.log)
		}
	}
}

// says describes the pods that are known.
func (r *rig) says() string {
	pods := r.Pods().List
	if pods == nil {
		return "unknown"
	}
	words := []string{}
	for _, p := range pods {
		word := p.Name + "@" + p.Address + " app=" + p.Labels["app"]
		if p.Ending {
			word += " ending"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// bound is a pod that a kubelet would have to end.
func bound(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: name, Labels: map[string]string{"app": "llama"}},
		Spec: corev1.PodSpec{NodeName: "nowhere", Containers: []corev1.Container{{Name: "engine", Image: "engine"}}}}
}

// is gives a pod an address and a readiness, as a kubelet does.
func is(t *testing.T, c client.Client, p *corev1.Pod, address string, ready corev1.ConditionStatus) {
	t.Helper()
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}
	must(t, c.Status().Update(t.Context(), p))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What a Reader knows is what a real API server has, and stays what it last had. K07: a missing right is no end of the process.
// K22: an API server that is gone leaves nothing out.
func TestReader(t *testing.T) {
	env, c := startAPIServer(t)
	must(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "models"}}))
	user, err := env.AddUser(envtest.User{Name: "demo-picker"}, nil)
	must(t, err)
	r := newRig(t, user.Config())
	const patient = 30 * time.Second
	t.Run("missing rights are said once, with the rule that gives them", func(t *testing.T) { r.lacksRights(t, c) })
	t.Run("pods come and go", func(t *testing.T) { r.followsPods(t, c) })
	t.Run("the ConfigMap changes", func(t *testing.T) { r.followsFile(t, c) })
	t.Run("the API server is gone for a while", func(t *testing.T) {
		last := r.says()
		restart := killAPIServer(t)
		r.within(t, patient, "it says so", func() bool { return len(r.Why()) == 2 })
		fresh := newRig(t, user.Config()) // one that starts meanwhile knows nothing, and says so
		fresh.within(t, patient, "the new one says so, too", func() bool { return len(fresh.Why()) == 2 })
		if got := fresh.says(); got != "unknown" || fresh.File() != nil {
			t.Errorf("got %s and %q of one that has read nothing", got, fresh.File())
		}
		if got := r.says(); got != last || string(r.File()) != "three" {
			t.Errorf("got %s and file %q, want what was known: %s", got, r.File(), last)
		}
		restart()
		extra := bound("llama-after")
		r.within(t, time.Minute, "the API server takes a pod", func() bool { return c.Create(t.Context(), extra) == nil })
		back := time.Now()
		is(t, c, extra, "10.0.0.9", corev1.ConditionTrue)
		for _, one := range []*rig{r, fresh} {
			one.within(t, patient, "it knows the pod that came since", func() bool { return strings.Contains(one.says(), "llama-after@10.0.0.9") })
			one.within(t, patient, "it says nothing is wrong", func() bool { return len(one.Why()) == 0 && string(one.File()) == "three" })
		}
		t.Logf("%s after the API server was back both knew all", time.Since(back).Round(time.Millisecond))
		if n := strings.Count(r.log.String(), "does not answer"); n != 2 {
			t.Errorf("said %d times that the API server does not answer, want once for each of the two that are read; log:\n%s", n, r.log)
		}
		if n := strings.Count(r.log.String(), "can be read again"); n != 4 {
			t.Errorf("said %d times that the API server can be read again, want once for each of the two, twice; log:\n%s", n, r.log)
		}
	})
	t.Run("it ends when it is told to", func(t *testing.T) { r.stop() })
}

// lacksRights has a user without rights read, and then gets the rights.
func (r *rig) lacksRights(t *testing.T, c client.Client) {
	r.within(t, time.Minute, "it says what is missing", func() bool { return len(r.Why()) == 2 })
	why := strings.Join(r.Why(), "\n")
	for _, want := range []string{`cannot watch pods in namespace "models"`, `User "demo-picker" cannot watch resource "pods"`,
		`bind a Role in namespace "models" with the rule {apiGroups: [""], resources: [pods], verbs: [list, watch]} to whom the message names`,
		`cannot watch ConfigMap "demo-picker" in namespace "models"`, `resources: [configmaps], resourceNames: [demo-picker], verbs: [list, watch]`} {
		if !strings.Contains(why, want) {
			t.Errorf("got %s, want %q in it", why, want)
		}
	}
	if n := strings.Count(r.log.String(), "the API server refuses"); n != 2 {
		t.Errorf("said %d times that the API server refuses, want once for each of the two that are read; log:\n%s", n, r.log)
	}
	if got := r.says(); got != "unknown" {
		t.Errorf("got %s, want that no pods are known", got)
	}
	// What the plan of a configuration grants is enough.
	must(t, c.Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: "demo-picker"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"demo-picker"}, Verbs: []string{"list", "watch"}}}}))
	must(t, c.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: "demo-picker"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "demo-picker"}}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "demo-picker"}}))
	r.within(t, time.Minute, "the rights are there and used", func() bool {
		return r.says() == "" && cmp.Equal(r.Why(), []string{`ConfigMap "demo-picker" in namespace "models" is not what is gone by: it is not there`})
	})
}

// followsPods plays a kubelet.
func (r *rig) followsPods(t *testing.T, c client.Client) {
	step := func(what, want string) {
		t.Helper()
		at := time.Now()
		r.within(t, 30*time.Second, fmt.Sprintf("%s: %q", what, want), func() bool { return r.says() == want })
		t.Logf("%s: known after %s", what, time.Since(at).Round(time.Millisecond))
	}
	p, other := bound("llama-0"), bound("llama-1")
	must(t, c.Create(t.Context(), p))
	must(t, c.Create(t.Context(), other))
	is(t, c, other, "10.0.0.2", corev1.ConditionTrue)
	step("of two that start one is ready", "llama-1@10.0.0.2 app=llama")
	is(t, c, p, "10.0.0.1", corev1.ConditionFalse)
	is(t, c, p, "10.0.0.1", corev1.ConditionTrue)
	step("the other is ready, too", "llama-0@10.0.0.1 app=llama, llama-1@10.0.0.2 app=llama")
	p.Labels["app"] = "other"
	must(t, c.Update(t.Context(), p))
	step("it changes its label", "llama-0@10.0.0.1 app=other, llama-1@10.0.0.2 app=llama")
	is(t, c, other, "10.0.0.2", corev1.ConditionFalse)
	step("one is ready no more", "llama-0@10.0.0.1 app=other")
	is(t, c, other, "10.0.0.2", corev1.ConditionTrue)
	step("and again", "llama-0@10.0.0.1 app=other, llama-1@10.0.0.2 app=llama")
	must(t, c.Delete(t.Context(), p, client.GracePeriodSeconds(30)))
	step("one is to end, and has 30 s for it", "llama-1@10.0.0.2 app=llama, llama-0@10.0.0.1 app=other ending")
	must(t, c.Delete(t.Context(), p, client.GracePeriodSeconds(0)))
	step("and is gone", "llama-1@10.0.0.2 app=llama")
	elsewhere := bound("stranger")
	elsewhere.Namespace = "default"
	must(t, c.Create(t.Context(), elsewhere))
	is(t, c, elsewhere, "10.0.0.3", corev1.ConditionTrue)
	six := bound("llama-6")
	must(t, c.Create(t.Context(), six))
	is(t, c, six, "fd00::6", corev1.ConditionTrue)
	step("one with IPv6, and a stranger in another namespace", "llama-1@10.0.0.2 app=llama, llama-6@fd00::6 app=llama")
}

// followsFile plays whoever writes the ConfigMap.
func (r *rig) followsFile(t *testing.T, c client.Client) {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: "demo-picker"}, Data: map[string]string{"gateway.yaml": "one", "else": "x"}}
	step := func(want string, why ...string) {
		t.Helper()
		r.within(t, 30*time.Second, fmt.Sprintf("the file is %q, and why %q", want, why), func() bool {
			return string(r.File()) == want && cmp.Equal(why, r.Why())
		})
	}
	const lacks = `ConfigMap "demo-picker" in namespace "models" is not what is gone by: it `
	must(t, c.Create(t.Context(), m))
	step("one")
	m.Data["gateway.yaml"] = "two"
	must(t, c.Update(t.Context(), m))
	step("two")
	delete(m.Data, "gateway.yaml")
	must(t, c.Update(t.Context(), m))
	step("two", lacks+`has no key "gateway.yaml" in data`)
	must(t, c.Delete(t.Context(), m))
	step("two", lacks+"is not there")
	m.ResourceVersion, m.UID, m.Data["gateway.yaml"] = "", "", "three"
	must(t, c.Create(t.Context(), m))
	step("three")
}
