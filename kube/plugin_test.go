package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

func TestJudge(t *testing.T) {
	f := func(kind string, status metav1.ConditionStatus, want Level, told bool) {
		t.Helper()
		if l, says := judge(metav1.Condition{Type: kind, Status: status}); l != want || says != told {
			t.Errorf("%s %s: got %s, %t, want %s, %t", kind, status, l, says, want, told)
		}
	}
	f(v1alpha1.ConditionAccepted, metav1.ConditionTrue, LevelOK, false)
	f(v1alpha1.ConditionAccepted, metav1.ConditionFalse, LevelFail, true)
	f(v1alpha1.ConditionServing, metav1.ConditionFalse, LevelFail, true)
	f(v1alpha1.ConditionAdmissionBlocked, metav1.ConditionFalse, LevelOK, false)
	f(v1alpha1.ConditionAdmissionBlocked, metav1.ConditionTrue, LevelFail, true)
	f(v1alpha1.ConditionMetricsRead, metav1.ConditionFalse, LevelWarn, true)
	f(v1alpha1.ConditionMetricsRead, metav1.ConditionUnknown, LevelWarn, true)
	f(v1alpha1.ConditionHonoured, metav1.ConditionFalse, LevelWarn, true)
}

func TestPickerFaults(t *testing.T) {
	f := func(text string, peers int, fails bool, want ...string) {
		t.Helper()
		var s pickerState
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		faults, failed := s.faults(peers)
		if diff := cmp.Diff(want, faults); diff != "" || failed != fails {
			t.Errorf("%s: fails %t, want %t, -want +got:\n%s", text, failed, fails, diff)
		}
	}
	f(`{"sides":[{"peers":[{"name":"b","told":true,"heard":true}],"pools":[{"name":"llama","endpoints":[{"name":"a","state":"ready"}]}]}]}`, 1, false)
	f(`{"sides":[{"peers":[{"name":"b","told":true,"heard":false}],"pools":[]}]}`, 2, false, `sees 0 of 2 peers, and decides without the others: look at their logs for "peer"`)
	f(`{"sides":[{"pools":[{"name":"llama","endpoints":[{"name":"a","state":"ready"},{"name":"b","state":"stale","why":"no reading for 5 s"}]}]}]}`, 0, false,
		"does not count on endpoints of llama: b is stale (no reading for 5 s)")
	f(`{"sides":[{"pools":[{"name":"q","endpoints":[{"name":"a","state":"gone"},{"name":"b","state":"gone"},{"name":"c","state":"gone"},{"name":"d","state":"gone"},{"name":"e","state":"gone"}]}]}]}`, 0, false,
		"does not count on endpoints of q: a is gone (), b is gone (), c is gone (), and 2 more")
	// One that is reached keeps the pool; where none is, requests fail. A pool without endpoints is a matter of its condition.
	f(`{"sides":[{"pools":[{"name":"q","endpoints":[{"name":"a","state":"not ready","why":"refused"},{"name":"b","state":"ready"}]}]}]}`, 0, false,
		"does not count on endpoints of q: a is not ready (refused)")
	f(`{"sides":[{"pools":[{"name":"q","endpoints":[{"name":"a","state":"not ready","why":"refused"},{"name":"b","state":"not ready","why":"refused"}]},{"name":"r"}]}]}`, 0, true,
		"reaches no endpoint of q, so that requests are answered 503: a is not ready (refused), b is not ready (refused); look at targetPort, and whether a NetworkPolicy keeps pickers out")
	f(`{"sides":[{"pools":[{"name":"q","endpoints":[{"name":"a","state":"not ready","why":"it speaks HTTP/1: set appProtocol to http"}]}]}]}`, 0, true,
		"reaches no endpoint of q, so that requests are answered 503: a is not ready (it speaks HTTP/1: set appProtocol to http)")
	f(`{"sides":[{"pools":[{"name":"default backend","endpoints":[{"name":"a","state":"not ready","why":"refused"}]}]}]}`, 0, true,
		"does not reach the default backend, so that requests for models of no scheduler are answered 503: a is not ready (refused); see that the Service of spec.bbr.defaultBackend has pods that are ready, and that its targetPort is theirs")
	f(`{"sides":[{"pools":[{"name":"q","endpoints":[{"name":"a","state":"draining","why":"to drain"},{"name":"b","state":"not ready","why":"refused"}]},{"name":"r","endpoints":[{"name":"c","state":"draining","why":"to drain"},{"name":"d","state":"ready"}]}]}]}`, 0, true,
		"has no endpoint of q that takes requests, so that they are answered 503: a is draining (to drain), b is not ready (refused)", "does not count on endpoints of r: c is draining (to drain)")
}

// TestGatewayFindings: a gateway takes requests where its conditions and its pickers say so, and of endpoints that aren't there nobody
// says that they are ready.
func TestGatewayFindings(t *testing.T) {
	const takes = "ok takes requests, and has endpoints for 1 model"
	f := func(serving metav1.ConditionStatus, state string, want ...string) {
		t.Helper()
		e := &examination{Cluster: &Cluster{admin: func(context.Context, *corev1.Pod, string, url.Values) ([]byte, error) { return []byte(state), nil }}}
		c := &v1alpha1.InferenceGatewayConfig{Spec: v1alpha1.InferenceGatewayConfigSpec{Schedulers: make([]v1alpha1.Scheduler, 1)}}
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue},
			{Type: v1alpha1.ConditionServing, Status: serving, Reason: "Why", Message: "what"}}
		e.gateway(t.Context(), "gateway", c, []Picker{{Name: "gw-picker-0", Deployment: "gw-picker"}})
		var got []string
		for _, finding := range e.found {
			got = append(got, string(finding.Level)+" "+finding.Text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", state, diff)
		}
	}
	ready, lost := `{"name":"a","state":"ready"}`, `{"name":"b","state":"not ready","why":"refused"}`
	pool := func(name, endpoints string) string { return `{"name":"` + name + `","endpoints":[` + endpoints + `]}` }
	of := func(pools ...string) string { return `{"sides":[{"pools":[` + strings.Join(pools, ",") + `]}]}` }
	f(metav1.ConditionTrue, of(pool("llama", ready)), "ok 1 of 1 pickers see their peers, and every endpoint ready", takes)
	f(metav1.ConditionTrue, of(pool("llama", ready+","+lost)), `warn picker "gw-picker-0" does not count on endpoints of llama: b is not ready (refused)`, takes)
	f(metav1.ConditionTrue, of(pool("llama", lost)),
		`fail picker "gw-picker-0" reaches no endpoint of llama, so that requests are answered 503: b is not ready (refused); look at targetPort, and whether a NetworkPolicy keeps pickers out`)
	f(metav1.ConditionFalse, of(pool("llama", ready)), "fail Serving is False (Why): what", "ok 1 of 1 pickers see their peers, and every endpoint ready")
	f(metav1.ConditionFalse, of(pool("qwen", ""), pool("llama", "")), "fail Serving is False (Why): what", "ok 1 of 1 pickers see their peers, and have no endpoint of llama, qwen")
	f(metav1.ConditionFalse, of(pool("qwen", ""), pool("llama", ready)), "fail Serving is False (Why): what",
		"ok 1 of 1 pickers see their peers, and every endpoint ready, and have no endpoint of qwen")
}

func TestRefusal(t *testing.T) {
	f := func(err error, fails bool, want ...string) {
		t.Helper()
		faults, failed := refusal(err)
		if diff := cmp.Diff(want, faults); diff != "" || (failed != nil) != fails {
			t.Errorf("%v: got error %v, -want +got:\n%s", err, failed, diff)
		}
	}
	f(nil, false)
	f(errors.New("connection refused"), true)
	f(apierrors.NewInternalError(errors.New("etcd is gone")), true)
	f(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("no")), false, `pods "a" is forbidden: no`)
	f(apierrors.NewInvalid(schema.GroupKind{Kind: "K"}, "a", field.ErrorList{field.Required(field.NewPath("spec", "x"), "say what"), field.Invalid(field.NewPath("spec", "y"), 1, "is odd")}), false,
		"spec.x: Required value: say what", "spec.y: Invalid value: 1: is odd")
}

// TestAsk: who can't be asked is named, with what it takes.
func TestAsk(t *testing.T) {
	c := &Cluster{admin: func(context.Context, *corev1.Pod, string, url.Values) ([]byte, error) {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods/proxy"}, "gw-picker-0", errors.New("no"))
	}}
	if _, err := c.Ask(t.Context(), Picker{Namespace: "models", Name: "gw-picker-0"}, "explain", nil); err == nil || !strings.Contains(err.Error(), "gw-picker-0") || !strings.Contains(err.Error(), "pods/proxy") {
		t.Errorf("got %v, want the picker's name and the right", err)
	}
}

// TestAskWhoDoesNotRun: of a picker whose container crashes, or never started, that is said and nobody asks; rights are named
// where rights are the matter.
func TestAskWhoDoesNotRun(t *testing.T) {
	asked := false
	var answer error
	c := &Cluster{admin: func(context.Context, *corev1.Pod, string, url.Values) ([]byte, error) {
		asked = true
		return nil, answer
	}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: "gw-picker-0"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "side"}, {Name: "picker", Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: 9090}}}}}}
	f := func(s corev1.ContainerStatus, asks bool, want string, not ...string) {
		t.Helper()
		asked = false
		s.Name = "picker"
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "side", Ready: true}, s}
		_, err := c.Ask(t.Context(), pickerOf(pod, "gw-picker"), "explain", nil)
		if err == nil || !strings.Contains(err.Error(), want) || asked != asks {
			t.Errorf("got %v, asked %t, want %q, %t", err, asked, want, asks)
		}
		for _, n := range not {
			if strings.Contains(err.Error(), n) {
				t.Errorf("got %v, want no %q", err, n)
			}
		}
	}
	ended := &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error", Message: "cannot use --x\n"}
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	answer = errors.New("connection refused")
	f(corev1.ContainerStatus{State: waiting("CrashLoopBackOff", "back-off 5m0s"), RestartCount: 7, LastTerminationState: corev1.ContainerState{Terminated: ended}}, false,
		`container "picker" is in CrashLoopBackOff, with 7 restarts, the last time by exit code 2, saying "cannot use --x": `+"`kubectl logs -n models gw-picker-0 --previous` says why", "pods/proxy")
	f(corev1.ContainerStatus{State: waiting("ImagePullBackOff", "not found")}, false, "container \"picker\" waits (ImagePullBackOff: not found): `kubectl describe pod -n models gw-picker-0`")
	f(corev1.ContainerStatus{State: waiting("ContainerCreating", "")}, false, `waits (ContainerCreating): `)
	f(corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}}, false,
		"has ended, with 0 restarts, the last time by exit code 137 (OOMKilled): `kubectl logs -n models gw-picker-0` says why")
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	f(corev1.ContainerStatus{State: running, RestartCount: 1, LastTerminationState: corev1.ContainerState{Terminated: ended}}, true, "runs again, and is not ready, with 1 restart, the last time by exit code 2", "pods/proxy")
	f(corev1.ContainerStatus{State: running, Ready: true}, true, "connection refused", "pods/proxy", "kubectl logs")
	answer = errors.New("unable to upgrade connection: pods is forbidden")
	f(corev1.ContainerStatus{State: running, Ready: true}, true, "you need the right to get pods/proxy", "kubectl logs")
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available"}}
	pod.Status.ContainerStatuses = nil
	if _, err := c.Ask(t.Context(), pickerOf(pod, ""), "explain", nil); err == nil || !strings.Contains(err.Error(), "no node takes its pod (Unschedulable: 0/1 nodes are available)") {
		t.Errorf("got %v", err)
	}
}

// TestAskWhoPanicked: of a panic whose stack is longer than what a kubelet keeps, the log says what it was.
func TestAskWhoPanicked(t *testing.T) {
	const stack = "goroutine 7 [running]:\nmain.f(...)\n\t/src/main.go:7 +0x1d\n"
	log, may := `{"msg":"listening"}`+"\npanic: assignment to entry in nil map\n\n"+stack, true
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path + " " + r.URL.Query().Get("container") + " " + r.URL.Query().Get("previous")
		if !may {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, log)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: '" + server.URL + "'}}], contexts: [{name: x, context: {cluster: c}}], current-context: x}"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := OpenCluster(file, "", "")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: "gw-picker-0"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "sluice", Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: 9090}}}}}}
	f := func(message string, before bool, wantAsked, want string) {
		t.Helper()
		asked = ""
		ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Message: message}}
		s := corev1.ContainerStatus{Name: "sluice", State: ended}
		if before {
			s.State, s.LastTerminationState = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, ended
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{s}
		_, err := c.Ask(t.Context(), pickerOf(pod, ""), "explain", nil)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("saying %q", want)) || asked != wantAsked {
			t.Errorf("got %v, asked %q; want %q, %q", err, asked, want, wantAsked)
		}
		if ended.Terminated.Message != message {
			t.Error("the pod was written to")
		}
	}
	const path = "/api/v1/namespaces/models/pods/gw-picker-0/log sluice "
	f("in(...)\n"+stack, true, path+"true", "panic: assignment to entry in nil map")
	f("in(...)\n"+stack, false, path, "panic: assignment to entry in nil map")
	f("panic: another\n\n"+stack, true, "", "panic: another")
	f("cannot use --x", true, "", "cannot use --x")
	may = false
	f("in(...)\n"+stack, true, path+"true", "/src/main.go:7 +0x1d")
}

// TestLastLine: of a container's last lines the one is shown that says why it ended.
func TestLastLine(t *testing.T) {
	f := func(message, want string) {
		t.Helper()
		if got := lastLine(message); got != want {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
	logged := `{"time":"2026-01-02T15:04:05Z","level":"INFO","msg":"listening"}` + "\n"
	f(" \n", "")
	f("cannot use --x\n", "cannot use --x")
	f(logged+logged+"sluice: cannot listen on :9090: address already in use\n", "sluice: cannot listen on :9090: address already in use")
	f(logged+"sluice: cannot read gateway.yaml:\n  line 3\n", "sluice: cannot read gateway.yaml:")
	f(logged+"panic: assignment to entry in nil map\n\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:7 +0x1d\nexit status 2\n", "panic: assignment to entry in nil map")
	f(logged+"fatal error: concurrent map writes\n\ngoroutine 1 [running]:\n", "fatal error: concurrent map writes")
	f(logged+"the last one", "the last one")
	f(strings.Repeat("é", 1000), strings.Repeat("é", 300)+" ...")
}

// TestGoing: of what is being deleted it is said since when, what keeps it, and what to do.
func TestGoing(t *testing.T) {
	f := func(finalizers []string, installed bool, want string) {
		t.Helper()
		e := &examination{}
		if installed {
			e.controller = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "controller"}}
		}
		since := metav1.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
		c := &v1alpha1.InferenceGatewayConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "models", Name: "gateway", DeletionTimestamp: &since, Finalizers: finalizers}}
		if !e.going("gateway", "igwc", c) || len(e.found) != 1 || e.found[0].Level != LevelWarn {
			t.Fatalf("got %+v", e.found)
		}
		if !strings.Contains(e.found[0].Text, "is being deleted since 2026-01-02T15:04:05Z") || !strings.Contains(e.found[0].Text, want) {
			t.Errorf("got %s, want %q", e.found[0].Text, want)
		}
	}
	f([]string{finalizer}, true, "kept by finalizer gateway.sluice.dev/cleanup until the controller has removed what it made for it; if that lasts, kubectl -n system logs deployment/controller")
	f([]string{finalizer}, false, `kubectl -n models patch igwc gateway --type merge -p '{"metadata":{"finalizers":[]}}'`)
	f([]string{"other/x", finalizer}, true, `kept by finalizer other/x, which whoever put it there takes out; if nobody does any more, kubectl -n models patch igwc gateway --type merge -p '{"metadata":{"finalizers":["gateway.sluice.dev/cleanup"]}}'`)
	if e := new(examination); e.going("gateway", "igwc", new(v1alpha1.InferenceGatewayConfig)) || len(e.found) > 0 {
		t.Errorf("got %+v of one that stays", e.found)
	}
}
