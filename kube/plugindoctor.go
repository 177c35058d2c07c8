package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/translate"
)

// Level is how bad a finding is.
type Level string

// The levels: it is as it has to be; it can't be told, or may be meant; requests fail, or will.
const (
	LevelOK   Level = "ok"
	LevelWarn Level = "warn"
	LevelFail Level = "fail"
)

// Finding is one thing that was looked at.
type Finding struct {
	// Level is how bad it is.
	Level Level
	// What was looked at, in a few words.
	What string
	// Text says what is there, and where that isn't right, what to do.
	Text string
}

// examination is a look at a whole cluster under way.
type examination struct {
	*Cluster
	found []Finding

	controller     *appsv1.Deployment // nil where it isn't installed
	class, service string             // the GatewayClass, and the extension server's name and namespace as NAME.NAMESPACE.svc
	serviceGone    string             // why there is no extension server of ours, and what to do, empty where there is one or nobody knows
	classOwner     string             // the controllerName of the class
	gatewayAPI     bool               // the API server knows GatewayClasses
	classMaker     string             // the controllerName with which the controller makes the class where there is none, empty where it does not
	released       string             // the namespace of the release of Helm that brought the definitions, empty where none did
}

// Examine looks for what keeps gateways from working, in the order in which one thing needs the other: definitions, the
// controller, Envoy Gateway, configurations, pickers. What may not be looked at is said and holds nothing up.
func (c *Cluster) Examine(ctx context.Context) []Finding {
	e := &examination{Cluster: c, class: translate.DefaultGatewayClass}
	if !e.server(ctx) {
		return e.found
	}
	e.definitions(ctx)
	e.foreign(ctx)
	e.control(ctx)
	e.gatewayClass(ctx)
	e.envoyGateway(ctx)
	e.configs(ctx)
	return e.found
}

func (e *examination) say(v Level, what, format string, args ...any) {
	e.found = append(e.found, Finding{v, what, fmt.Sprintf(format, args...)})
}

// unseen says that something can't be looked at. It reports false, for what depends on it.
func (e *examination) unseen(what string, err error) bool {
	e.say(LevelWarn, what, "can't be looked at: %v", err)
	return false
}

// server reports whether there is an API server that answers.
func (e *examination) server(ctx context.Context) bool {
	var v version.Info
	if err := e.read(ctx, &v, nil, "/version"); err != nil {
		e.say(LevelFail, "API server", "does not answer: %v", err)
		return false
	}
	e.say(LevelOK, "API server", "Kubernetes %s", v.GitVersion)
	return true
}

// definitionState is what is read of a definition.
type definitionState struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

func (e *examination) definitions(ctx context.Context) {
	const what = "definitions"
	var missing []string
	for _, k := range ownKinds() {
		name, d := k.plural(), new(definitionState)
		switch err := e.read(ctx, d, nil, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", name); {
		case apierrors.IsNotFound(err):
			missing = append(missing, name)
			continue
		case err != nil:
			e.unseen(what, err)
			return
		}
		e.released = cmp.Or(e.released, d.Annotations["meta.helm.sh/release-namespace"])
		if !slices.ContainsFunc(d.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == "Established" && c.Status == metav1.ConditionTrue
		}) {
			e.say(LevelFail, what, "%s is not established: kubectl describe crd %s says why", name, name)
		}
	}
	if len(missing) > 0 {
		e.say(LevelFail, what, "the API server does not know %s: install the chart with crds.install=true, or kubectl apply --server-side -k deploy/crds", strings.Join(missing, ", "))
		return
	}
	e.say(LevelOK, what, "all %d kinds of ours are known", len(ownKinds()))
}

// foreignKind is a kind of someone else's that gateways are made of.
type foreignKind struct{ group, resource, from string }

// foreignKinds are those that no gateway behind Envoy does without.
func foreignKinds() []foreignKind {
	const gateway, pools, envoy = "Gateway API 1.4 or later", "the Gateway API Inference Extension 1.0 or later", "Envoy Gateway 1.9 or later"
	return []foreignKind{
		{"gateway.networking.k8s.io/v1", "gatewayclasses", gateway}, {"gateway.networking.k8s.io/v1", "httproutes", gateway}, {"gateway.networking.k8s.io/v1beta1", "referencegrants", gateway},
		{"inference.networking.k8s.io/v1", "inferencepools", pools},
		{"gateway.envoyproxy.io/v1alpha1", "envoyproxies", envoy}, {"gateway.envoyproxy.io/v1alpha1", "envoyextensionpolicies", envoy}, {"gateway.envoyproxy.io/v1alpha1", "httproutefilters", envoy},
	}
}

func (e *examination) foreign(ctx context.Context) {
	known := make(map[string]bool)
	for _, group := range []string{"gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1", "inference.networking.k8s.io/v1", "gateway.envoyproxy.io/v1alpha1"} {
		var list metav1.APIResourceList
		if err := e.read(ctx, &list, nil, "/apis/"+group); err != nil && !apierrors.IsNotFound(err) {
			e.unseen(group, err)
			return
		}
		for _, r := range list.APIResources {
			known[group+" "+r.Name] = true
		}
	}
	e.gatewayAPI = known["gateway.networking.k8s.io/v1 gatewayclasses"]
	missing := make(map[string][]string)
	var order []string
	for _, k := range foreignKinds() {
		if known[k.group+" "+k.resource] {
			continue
		}
		if missing[k.from] == nil {
			order = append(order, k.from)
		}
		missing[k.from] = append(missing[k.from], k.resource+" of "+k.group)
	}
	for _, from := range order {
		e.say(LevelFail, "kinds of others", "the API server does not know %s: install %s, or use the topology Embedded, which needs none of it", strings.Join(missing[from], ", "), from)
	}
	if len(order) == 0 {
		e.say(LevelOK, "kinds of others", "those of Gateway API, the Inference Extension and Envoy Gateway are known")
	}
}

func (e *examination) gatewayClass(ctx context.Context) {
	const what = "GatewayClass"
	g := new(gatewayv1.GatewayClass)
	switch err := e.read(ctx, g, nil, "/apis/gateway.networking.k8s.io/v1/gatewayclasses", e.class); {
	case apierrors.IsNotFound(err) && e.classMaker != "" && !e.gatewayAPI:
		e.say(LevelFail, what, "there is none called %s yet: the controller makes it by itself once the API server knows Gateway API, which comes with Envoy Gateway; install that, and nothing else is to do here", e.class)
		return
	case apierrors.IsNotFound(err) && e.classMaker != "":
		e.say(LevelFail, what, "there is none called %s yet: the controller makes it within half a minute of knowing Gateway API; if that passes, kubectl -n %s logs deployment/%s says why", e.class, e.controller.Namespace, e.controller.Name)
		return
	case apierrors.IsNotFound(err):
		e.say(LevelFail, what, "there is none called %s, of which every Gateway of ours is: install the chart with gatewayClass.create=true", e.class)
		return
	case err != nil:
		e.unseen(what, err)
		return
	}
	e.classOwner = string(g.Spec.ControllerName)
	for _, c := range g.Status.Conditions {
		if c.Type == string(gatewayv1.GatewayClassConditionStatusAccepted) && c.Status == metav1.ConditionTrue {
			e.say(LevelOK, what, "%s is accepted by %s", e.class, e.classOwner)
			return
		}
	}
	e.say(LevelFail, what, "nobody has accepted %s: its controllerName is %s; %s", e.class, e.classOwner, e.classRemedy())
}

// classRemedy is what to do about a class that no Envoy Gateway takes for its own. Its controllerName can't be changed, so that what our
// chart says of it has no effect while there is one.
func (e *examination) classRemedy() string {
	remove := "kubectl delete gatewayclass " + e.class
	switch e.classMaker {
	case "":
		return fmt.Sprintf("look whether an Envoy Gateway that calls itself so runs; if none is to, %s, and make one with the name of yours (gatewayClass.create=true has the controller do it)", remove)
	case e.classOwner:
		return fmt.Sprintf("look whether an Envoy Gateway that calls itself so runs; if yours calls itself otherwise, set gatewayClass.controllerName to that, and then %s: the controller makes it anew", remove)
	}
	return fmt.Sprintf("it is somebody else's, since our chart says %s, which can't be written into a class that is there: %s, after which the controller makes it anew within half a minute, or, if others need it, set gatewayClass.name to another name", e.classMaker, remove)
}

// envoyGatewayFile is what is read of Envoy Gateway's configuration.
type envoyGatewayFile struct {
	Gateway struct {
		ControllerName string `json:"controllerName"`
	} `json:"gateway"`
	ExtensionManager  *extensionEntry  `json:"extensionManager"`
	ExtensionManagers []extensionEntry `json:"extensionManagers"`
}

type extensionEntry struct {
	BackendResources []backendKind `json:"backendResources"`
	Service          struct {
		Host string `json:"host"`
		FQDN struct {
			Hostname string `json:"hostname"`
		} `json:"fqdn"`
	} `json:"service"`
}

type backendKind struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
}

func (e *examination) envoyGateway(ctx context.Context) {
	const what = "Envoy Gateway"
	var list appsv1.DeploymentList
	if err := e.read(ctx, &list, labelled("control-plane", "envoy-gateway"), pathApps, "deployments"); err != nil {
		e.unseen(what, err)
		return
	}
	if len(list.Items) == 0 {
		e.say(LevelFail, what, "no Deployment with the label control-plane=envoy-gateway is in any namespace: install Envoy Gateway 1.9 or later with the values in deploy/envoy-gateway/values.yaml, or use the topology Embedded")
		return
	}
	ours := false
	for i := range list.Items {
		d := &list.Items[i]
		var m corev1.ConfigMap
		if err := e.read(ctx, &m, nil, pathTo(pathCore, d.Namespace, "configmaps", "envoy-gateway-config")...); err != nil {
			e.unseen(what+" in "+d.Namespace, err)
			ours = true // it may be
			continue
		}
		var file envoyGatewayFile
		if err := yaml.Unmarshal([]byte(m.Data["envoy-gateway.yaml"]), &file); err != nil {
			e.say(LevelWarn, what+" in "+d.Namespace, "its configuration can't be read: %v", err)
			continue
		}
		name := cmp.Or(file.Gateway.ControllerName, "gateway.envoyproxy.io/gatewayclass-controller")
		if e.classOwner != "" && name != e.classOwner {
			e.say(LevelOK, what+" in "+d.Namespace, "calls itself %s: it is not for GatewayClass %s", name, e.class)
			continue
		}
		ours = true
		e.extension(ctx, d, &file)
	}
	if !ours {
		e.say(LevelFail, what, "none calls itself %s, which is the controllerName of GatewayClass %s: %s", e.classOwner, e.class, e.classRemedy())
	}
}

// extension looks whether an Envoy Gateway asks our extension server, and may know of pools.
func (e *examination) extension(ctx context.Context, d *appsv1.Deployment, file *envoyGatewayFile) {
	what := "Envoy Gateway in " + d.Namespace
	const remedy = "give its chart the values in deploy/envoy-gateway/values.yaml (NOTES of our chart print them) and restart it"
	all := file.ExtensionManagers
	if file.ExtensionManager != nil {
		all = append(all, *file.ExtensionManager)
	}
	var named []string
	for _, m := range all {
		host := cmp.Or(m.Service.FQDN.Hostname, m.Service.Host)
		named = append(named, host)
		if !e.isOurs(host) {
			continue
		}
		if !slices.Contains(m.BackendResources, backendKind{poolv1.GroupName, "InferencePool"}) {
			e.say(LevelFail, what, "asks the extension server %s, and not about InferencePools: %s", host, remedy)
			return
		}
		if e.serviceGone != "" {
			e.say(LevelFail, what, "asks the extension server %s, which is not there: %s, or take the extensionManager out of Envoy Gateway's values; until then all Envoys stay as they are, those of other people's Gateways, too", host, e.serviceGone)
			return
		}
		if e.controller != nil && e.controller.Status.AvailableReplicas == 0 {
			e.say(LevelFail, what, "asks the extension server %s, which is away with the controller: until it is back, all Envoys stay as they are, those of other people's Gateways, too", host)
			return
		}
		if d.Status.AvailableReplicas == 0 {
			e.say(LevelFail, what, "has no copy that is available: Envoys go on with what they have; kubectl -n %s logs deployment/%s", d.Namespace, d.Name)
			return
		}
		e.mayReadPools(ctx, what, "system:serviceaccount:"+d.Namespace+":"+cmp.Or(d.Spec.Template.Spec.ServiceAccountName, "default"), host)
		return
	}
	switch asks := strings.Join(named, " and "); {
	case len(named) == 0 && e.serviceGone != "":
		e.say(LevelFail, what, "has no extensionManager, so that no InferencePool gets a request, and our extension server is not there: %s; then %s", e.serviceGone, remedy)
	case len(named) == 0:
		e.say(LevelFail, what, "has no extensionManager, so that no InferencePool gets a request: %s", remedy)
	case e.serviceGone != "":
		e.say(LevelFail, what, "asks the extension server %s, and ours is not there: %s; then %s", asks, e.serviceGone, remedy)
	default:
		e.say(LevelFail, what, "asks the extension server %s, and ours is %s.svc: %s", asks, e.service, remedy)
	}
}

// isOurs reports whether a host is our extension server, or would be, were it there.
func (e *examination) isOurs(host string) bool {
	if e.service == "" {
		return e.serviceGone == "" || strings.HasPrefix(host, extensionName+".")
	}
	return host == e.service || strings.HasPrefix(host, e.service+".")
}

// mayReadPools asks whether Envoy Gateway has the right that only our chart gives it.
func (e *examination) mayReadPools(ctx context.Context, what, user, host string) {
	review := authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: poolv1.GroupName, Resource: "inferencepools", Verb: "watch"}}}
	body, err := json.Marshal(review)
	if err == nil {
		var raw []byte
		if raw, err = answer(ctx, e.client.Post().AbsPath("/apis/authorization.k8s.io/v1/subjectaccessreviews").SetHeader("Content-Type", "application/json").Body(body)); err == nil {
			err = json.Unmarshal(raw, &review)
		}
	}
	switch {
	case err != nil:
		e.say(LevelOK, what, "asks the extension server %s", host)
		e.unseen(what+", its rights", err)
	case !review.Status.Allowed:
		e.say(LevelFail, what, "%s may not watch inferencepools: set envoyGateway.namespace and envoyGateway.serviceAccount of our chart to its own", user)
	default:
		e.say(LevelOK, what, "asks the extension server %s, and may watch InferencePools", host)
	}
}
