package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// askTimeout bounds each look into a cluster: someone waits for it.
const askTimeout = 15 * time.Second

// Cluster is what somebody at a terminal sees of a cluster, with that person's rights. It follows nothing.
type Cluster struct {
	client *rest.RESTClient
	config *rest.Config // for connections that are more than requests
	// Namespace is the one that commands are about, that of the kubeconfig's context unless another was asked for.
	Namespace string
	// admin asks a pod's admin listener.
	admin func(ctx context.Context, pod *corev1.Pod, path string, query url.Values) ([]byte, error)
}

// OpenCluster finds the cluster that a kubeconfig's context leads to, without asking it anything. Empty arguments are
// those that kubectl would take.
func OpenCluster(kubeconfig, context, namespace string) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
	overrides.Context.Namespace = namespace
	loading := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loading.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot find a cluster (name a file with --kubeconfig or $KUBECONFIG, and a context in it with --context): %w", err)
	}
	if namespace, _, err = loading.Namespace(); err != nil {
		return nil, fmt.Errorf("cannot tell the namespace: %w", err)
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	own := rest.CopyConfig(config)
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	own.Timeout, own.QPS, own.UserAgent = askTimeout, -1, "kubectl-sluice"
	own.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.UnversionedRESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client of the API server %s: %w", config.Host, err)
	}
	c := &Cluster{client: client, config: config, Namespace: namespace}
	c.admin = c.byAnyWay
	return c, nil
}

// read gets what is at a path into out.
func (c *Cluster) read(ctx context.Context, out any, query url.Values, path ...string) error {
	r := c.client.Get().AbsPath(path...)
	for key, values := range query {
		for _, v := range values {
			r.Param(key, v)
		}
	}
	raw, err := answer(ctx, r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("cannot read what the API server says of %s: %w", strings.Join(path, "/"), err)
	}
	return nil
}

// answer is what the API server says, or why not, in its own words: DoRaw loses those.
func answer(ctx context.Context, r *rest.Request) ([]byte, error) {
	result := r.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// pathTo is the path of a namespace's objects of a resource, or of all namespaces' where it is empty.
func pathTo(base, namespace, resource string, name ...string) []string {
	path := []string{base}
	if namespace != "" {
		path = append(path, "namespaces", namespace)
	}
	return append(append(path, resource), name...)
}

// Paths of groups.
const (
	pathCore = "/api/v1"
	pathApps = "/apis/apps/v1"
	pathOurs = "/apis/" + v1alpha1.GatewayGroup + "/" + v1alpha1.Version
	pathIGWC = "/apis/" + v1alpha1.InferenceGroup + "/" + v1alpha1.Version
)

// basePath is the path of a group and version as apiVersion has them.
func basePath(apiVersion string) string {
	if apiVersion == "v1" {
		return pathCore
	}
	return "/apis/" + apiVersion
}

// labelled selects by a label.
func labelled(key, value string) url.Values { return url.Values{"labelSelector": {key + "=" + value}} }

// Picker is a process of a gateway that decides where requests go.
type Picker struct {
	// Namespace and Name are its pod's, Deployment what that is a copy of.
	Namespace, Name, Deployment string
	// Ready: Envoy asks it, or clients reach it.
	Ready bool

	pod *corev1.Pod
}

// Pickers are the processes of a configuration in its namespace that pick, by name; where what is no configuration's name
// but a pod's, that one. Both may have their kind in front: igwc/gateway, pod/gateway-picker-x.
func (c *Cluster) Pickers(ctx context.Context, what string) ([]Picker, error) {
	kind, name, given := strings.Cut(what, "/")
	if !given {
		kind, name = "", what
	}
	switch kind {
	case "", "igwc", "inferencegatewayconfig", "inferencegatewayconfigs":
		list, err := c.pickersOf(ctx, c.Namespace, name)
		if err != nil || len(list) > 0 {
			return list, err
		}
		if kind != "" {
			return nil, c.noPickers(ctx, name)
		}
	case "pod", "pods":
	default:
		return nil, fmt.Errorf("cannot look at %q: it is the name of an InferenceGatewayConfig or of a picker's pod", what)
	}
	pod := new(corev1.Pod)
	err := c.read(ctx, pod, nil, pathTo(pathCore, c.Namespace, "pods", name)...)
	switch {
	case apierrors.IsNotFound(err) && kind == "":
		return nil, c.noPickers(ctx, name)
	case err != nil:
		return nil, fmt.Errorf("cannot look at pod %q in namespace %q: %w", name, c.Namespace, err)
	case adminPort(pod) == 0:
		return nil, fmt.Errorf("cannot ask pod %q in namespace %q: it has no port called admin, and so is no picker: name the InferenceGatewayConfig, or one of its pickers", name, c.Namespace)
	}
	return []Picker{pickerOf(pod, "")}, nil
}

// noPickers says why a configuration has none.
func (c *Cluster) noPickers(ctx context.Context, name string) error {
	config := new(v1alpha1.InferenceGatewayConfig)
	switch err := c.read(ctx, config, nil, pathTo(pathIGWC, c.Namespace, "inferencegatewayconfigs", name)...); {
	case apierrors.IsNotFound(err) && apierrors.IsNotFound(c.read(ctx, new(v1alpha1.InferenceGatewayConfigList), nil, pathTo(pathIGWC, c.Namespace, "inferencegatewayconfigs")...)):
		return fmt.Errorf("cannot look at InferenceGatewayConfig %q in namespace %q: %s", name, c.Namespace, unknownKind(kindConfig, configKind().GroupVersion().String()))
	case apierrors.IsNotFound(err):
		return fmt.Errorf("cannot find an InferenceGatewayConfig or a pod %q in namespace %q: kubectl get igwc -A lists those there are, and -n names another namespace", name, c.Namespace)
	case err != nil:
		return fmt.Errorf("cannot look at InferenceGatewayConfig %q in namespace %q: %w", name, c.Namespace, err)
	}
	return fmt.Errorf("cannot ask the pickers of InferenceGatewayConfig %q in namespace %q: there is none yet; `kubectl sluice doctor` says why", name, c.Namespace)
}

// pickersOf are the pods of the Deployments that were made for a configuration, in a namespace. Those that find the model alone
// are not among them.
func (c *Cluster) pickersOf(ctx context.Context, namespace, config string) ([]Picker, error) {
	var deployments appsv1.DeploymentList
	if err := c.read(ctx, &deployments, labelled(translate.LabelManagedBy, translate.ManagedBy), pathTo(pathApps, namespace, "deployments")...); err != nil {
		return nil, fmt.Errorf("cannot list Deployments in namespace %q: %w", namespace, err)
	}
	var list []Picker
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if d.Annotations[translate.AnnotationOwner] != namespace+"/"+config || selectsOnly(d) {
			continue
		}
		var pods corev1.PodList
		selector := url.Values{"labelSelector": {metav1.FormatLabelSelector(d.Spec.Selector)}}
		if err := c.read(ctx, &pods, selector, pathTo(pathCore, namespace, "pods")...); err != nil {
			return nil, fmt.Errorf("cannot list pods in namespace %q: %w", namespace, err)
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.DeletionTimestamp == nil && adminPort(p) != 0 {
				list = append(list, pickerOf(p, d.Name))
			}
		}
	}
	slices.SortFunc(list, func(a, b Picker) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// selectsOnly reports whether a Deployment's pods find the model and pick nothing.
func selectsOnly(d *appsv1.Deployment) bool {
	return slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return slices.Contains(c.Args, "--select-only") })
}

func pickerOf(pod *corev1.Pod, deployment string) Picker {
	return Picker{Namespace: pod.Namespace, Name: pod.Name, Deployment: deployment, Ready: podReady(pod), pod: pod}
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// adminPort is the port that operators ask, 0 for none.
func adminPort(pod *corev1.Pod) int32 {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == "admin" {
				return p.ContainerPort
			}
		}
	}
	return 0
}

// Ask asks a picker's admin listener. Of one whose container does not run it says why, and doesn't ask.
func (c *Cluster) Ask(ctx context.Context, p Picker, path string, query url.Values) ([]byte, error) {
	trouble, runs := "", true
	if p.pod != nil {
		trouble, runs = containerTrouble(c.withBegin(ctx, p.pod))
	}
	if !runs {
		return nil, fmt.Errorf("cannot ask picker %q in namespace %q: %s", p.Name, p.Namespace, trouble)
	}
	raw, err := c.admin(ctx, p.pod, path, query)
	switch {
	case err == nil:
		return raw, nil
	case trouble != "":
		return nil, fmt.Errorf("cannot ask picker %q in namespace %q: %s: %w", p.Name, p.Namespace, trouble, err)
	case apierrors.IsForbidden(err) || strings.Contains(err.Error(), "forbidden"): // an upgrade that is refused comes as text
		return nil, fmt.Errorf("cannot ask picker %q in namespace %q (you need the right to get pods/proxy or to create pods/portforward there): %w", p.Name, p.Namespace, err)
	}
	return nil, fmt.Errorf("cannot ask picker %q in namespace %q: %w", p.Name, p.Namespace, err)
}

// containerTrouble says what is wrong with the container that is asked, empty where nothing is, and whether it runs as far as is
// known.
func containerTrouble(pod *corev1.Pod) (text string, runs bool) {
	describe := fmt.Sprintf("`kubectl describe pod -n %s %s` says more", pod.Namespace, pod.Name)
	s := askedContainer(pod)
	if s == nil {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return fmt.Sprintf("no node takes its pod (%s: %s): %s", c.Reason, c.Message, describe), false
			}
		}
		return "", true
	}
	w, logs, ended := s.State.Waiting, fmt.Sprintf("`kubectl logs -n %s %s --previous` says why", pod.Namespace, pod.Name), s.LastTerminationState.Terminated
	text = fmt.Sprintf("container %q", s.Name)
	switch {
	case w != nil && ended == nil:
		return strings.TrimSuffix(fmt.Sprintf("%s waits (%s: %s", text, w.Reason, w.Message), ": ") + "): " + describe, false
	case w != nil:
		text += " is in " + w.Reason
	case s.State.Terminated != nil:
		text, ended, logs = text+" has ended", s.State.Terminated, strings.Replace(logs, " --previous", "", 1)
	case ended != nil && !s.Ready:
		text += " runs again, and is not ready"
	default:
		return "", true
	}
	return fmt.Sprintf("%s, with %s, the last time by %s: %s", text, counted(int(s.RestartCount), "restart"), lastWords(ended), logs), s.State.Running != nil
}

// askedContainer is how the container with the port that is asked is, nil where nobody has said.
func askedContainer(pod *corev1.Pod) *corev1.ContainerStatus {
	for _, c := range pod.Spec.Containers {
		if !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == "admin" }) {
			continue
		}
		if i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name }); i >= 0 {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// lastWords says how a container ended.
func lastWords(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Reason != "" && t.Reason != "Error" {
		text += " (" + t.Reason + ")"
	}
	if line := lastLine(t.Message); line != "" {
		text += fmt.Sprintf(", saying %q", line)
	}
	return text
}

// lastLine is the line of a container's last ones that says why it ended: what a program of ours that fails prints after its log, or
// what Go prints before the stack of one that panics; otherwise the last.
func lastLine(message string) string {
	lines := strings.Split(strings.TrimSpace(message), "\n")
	line := lines[len(lines)-1]
	for _, l := range lines {
		if saysWhy(l) {
			line = l
		}
	}
	return shortened(line, lastLetters)
}

// saysWhy reports whether a line says why a program of ours ended.
func saysWhy(line string) bool {
	return slices.ContainsFunc([]string{"sluice:", "panic:", "fatal error:"}, func(begin string) bool { return strings.HasPrefix(line, begin) })
}

// stackLine is a line of a stack as Go prints it.
var stackLine = regexp.MustCompile(`(?m)^\t\S+\.go:\d+( |$)`)

// withBegin is a pod whose container's last words are whole: of a panic with a long stack a kubelet keeps the end alone, and the log
// still has what it begins with.
func (c *Cluster) withBegin(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	s := askedContainer(pod)
	if s == nil {
		return pod
	}
	ended, query := s.State.Terminated, url.Values{"container": {s.Name}, "tailLines": {"1000"}}
	if ended == nil {
		ended = s.LastTerminationState.Terminated
		query.Set("previous", "true")
	}
	if ended == nil || !stackLine.MatchString(ended.Message) || slices.ContainsFunc(strings.Split(ended.Message, "\n"), saysWhy) {
		return pod
	}
	r := c.client.Get().AbsPath(pathTo(pathCore, pod.Namespace, "pods", pod.Name, "log")...)
	for key, values := range query {
		r.Param(key, values[0])
	}
	if log, err := answer(ctx, r); err == nil { // who may not read it sees the end
		ended.Message = string(log)
	}
	return pod
}

// lastLetters is how many letters of a line are shown.
const lastLetters = 300

// counted is a number of things, in words.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// byProxy has the API server pass a question on.
func (c *Cluster) byProxy(ctx context.Context, pod *corev1.Pod, path string, query url.Values) ([]byte, error) {
	r := c.client.Get().AbsPath(pathTo(pathCore, pod.Namespace, "pods", fmt.Sprintf("%s:%d", pod.Name, adminPort(pod)), "proxy", path)...)
	for key, values := range query {
		for _, v := range values {
			r.Param(key, v)
		}
	}
	return answer(ctx, r)
}

// Config is an InferenceGatewayConfig by its namespace and name.
type Config struct{ Namespace, Name string }

// Configs are the namespace's InferenceGatewayConfigs, or those of all namespaces.
func (c *Cluster) Configs(ctx context.Context, all bool) ([]Config, error) {
	namespace, where := c.Namespace, fmt.Sprintf("in namespace %q", c.Namespace)
	if all {
		namespace, where = "", "in all namespaces"
	}
	var list v1alpha1.InferenceGatewayConfigList
	switch err := c.read(ctx, &list, nil, pathTo(pathIGWC, namespace, "inferencegatewayconfigs")...); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("cannot list InferenceGatewayConfigs %s: %s", where, unknownKind(kindConfig, configKind().GroupVersion().String()))
	case err != nil:
		return nil, fmt.Errorf("cannot list InferenceGatewayConfigs %s: %w", where, err)
	}
	var out []Config
	for i := range list.Items {
		out = append(out, Config{list.Items[i].Namespace, list.Items[i].Name})
	}
	return out, nil
}

// In is the same cluster, where commands are about another namespace.
func (c *Cluster) In(namespace string) *Cluster {
	other := *c
	other.Namespace = namespace
	return &other
}
