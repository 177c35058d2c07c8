package translate

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// maxMessage is the longest message that a condition may have.
const maxMessage = 32768

// condition is one that is True or False.
func (b *builder) condition(kind string, holds bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: cut(message), ObservedGeneration: b.config.Generation}
	if holds {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// unknown is a condition that nobody can tell yet.
func (b *builder) unknown(kind, reason, message string) metav1.Condition {
	c := b.condition(kind, false, reason, message)
	c.Status = metav1.ConditionUnknown
	return c
}

// cut keeps a message within what an API server takes, at the end of a letter.
func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage-4], "") + " ..."
}

// check finds what a document asks for and nobody can do.
func (b *builder) check() {
	spec := &b.config.Spec
	for i := range spec.Schedulers {
		s := &spec.Schedulers[i]
		b.checkName(s.Name)
		if s.ConfigMapRef != nil {
			b.perScheduler[s.Name] = append(b.perScheduler[s.Name], fmt.Sprintf("configMapRef %q: picker configurations are not read, and routing by other rules than asked for would be no detail: use weights in its place", s.ConfigMapRef.Name))
		}
		if _, err := metav1.LabelSelectorAsSelector(s.ModelSelector); err != nil {
			b.perScheduler[s.Name] = append(b.perScheduler[s.Name], "modelSelector: "+err.Error())
		}
	}
	b.checkIdle()
	if b.topology == v1alpha1.TopologyEmbedded {
		b.checkEmbedded()
		return
	}
	if t := spec.TLS; t != nil && (t.ACMArn == nil || *t.ACMArn == "") {
		switch {
		case !b.ctx.knows(kindCertificate):
			b.notAccepted = append(b.notAccepted, "spec.tls: cert-manager is not installed, so that there is no certificate: install it, or set spec.tls.acmArn")
		case b.s.Issuer == "":
			b.notAccepted = append(b.notAccepted, "spec.tls: no ClusterIssuer is named for certificates: set it where the gateway was installed, or set spec.tls.acmArn")
		}
	}
}

// checkIdle finds what has no effect, or another than is asked for.
func (b *builder) checkIdle() {
	spec := &b.config.Spec
	b.notHonoured = append(append(b.notHonoured, b.ctx.Unread...), b.ctx.LeftOut...)
	if d := spec.BBR.DefaultBackend; d != nil && !b.selects() {
		b.notHonoured = append(b.notHonoured, "spec.bbr.defaultBackend has nothing to receive while bbr.enabled is false: everything goes to the one scheduler")
	} else if d != nil && !slices.Contains(b.ctx.Services, d.Name) {
		b.notHonoured = append(b.notHonoured, fmt.Sprintf("spec.bbr.defaultBackend.name: there is no Service %q in namespace %q: create it", d.Name, b.config.Namespace))
	}
	if list := b.objectives(b.served()); len(list) > 0 {
		var names []string
		for _, o := range list {
			names = append(names, fmt.Sprintf("%q", o.Name))
		}
		b.notHonoured = append(b.notHonoured, fmt.Sprintf("InferenceObjective %s: priorities order nothing yet, because there are no queues, and clients of a gateway in a cluster can't name them", joined(names)))
	}
	if p := spec.PodDefaults; p != nil {
		for _, key := range []string{labelApp, LabelConfig, LabelManagedBy, LabelScheduler} {
			if _, set := p.Labels[key]; set {
				b.notHonoured = append(b.notHonoured, fmt.Sprintf("spec.podDefaults.labels: %s is what the pods are found by, and keeps its own value", key))
			}
		}
	}
}

// checkEmbedded finds what the embedded proxy can't do, and clients were promised.
func (b *builder) checkEmbedded() {
	if b.config.Spec.Auth != nil {
		b.notAccepted = append(b.notAccepted, "spec.auth: the embedded proxy does not check tokens, and everyone would be let in: use the topology Fused or Split")
	}
	if b.config.Spec.TLS != nil {
		b.notAccepted = append(b.notAccepted, "spec.tls: the embedded proxy speaks plain text, and clients were promised https: use the topology Fused or Split")
	}
}

// checkName finds out whether a scheduler's objects can have the names that users know them by. One that can't is left out
// whole: a route without its pool, or the other way round, serves nobody.
func (b *builder) checkName(name string) {
	if b.topology == v1alpha1.TopologyEmbedded {
		return
	}
	if name == healthOf(b.config.Name) || name == selectOf(b.config.Name) {
		b.perScheduler[name] = append(b.perScheduler[name], "name: the gateway has a route of its own with this name: choose another one")
	}
	kinds := []Owned{{Kind: "HTTPRoute", Name: name}, {Kind: "InferencePool", Name: name}, {Kind: "Service", Name: schedulerOf(name)}}
	if b.topology == v1alpha1.TopologySplit {
		kinds = append(kinds, Owned{Kind: "Deployment", Name: schedulerOf(name)})
	}
	for _, o := range kinds {
		if b.others(o.Kind, b.config.Namespace, o.Name) {
			b.perScheduler[name] = append(b.perScheduler[name], b.taken(o.Kind, b.config.Namespace, o.Name))
		}
	}
}

// status says what holds, and what does not, and why.
func (b *builder) status() {
	st := &b.plan.Status
	st.ObservedGeneration = b.config.Generation
	var rolling []string
	of := map[string]*doubts{v1alpha1.ConditionServing: {}, v1alpha1.ConditionMetricsRead: {}}
	for i := range b.config.Spec.Schedulers {
		s := &b.config.Spec.Schedulers[i]
		one, bad := b.schedulerStatus(s)
		st.Schedulers = append(st.Schedulers, one)
		for _, c := range one.Conditions {
			if d := of[c.Type]; d != nil {
				d.take(&c, fmt.Sprintf("scheduler %q: %s", s.Name, c.Message))
			}
		}
		if bad != "" {
			rolling = append(rolling, fmt.Sprintf("scheduler %q: %s", s.Name, bad))
		}
		for _, fault := range b.perScheduler[s.Name] {
			b.notAccepted = append(b.notAccepted, fmt.Sprintf("scheduler %q: %s", s.Name, fault))
		}
	}
	accepted := b.all(v1alpha1.ConditionAccepted, b.notAccepted, "Accepted", "NotAccepted", "nothing contradicts the document")
	programmed, router, blocked := b.programmed(), b.router(), b.blocked()
	missing := rolling
	for _, c := range []metav1.Condition{accepted, programmed, router} {
		if c.Status != metav1.ConditionTrue {
			missing = append(missing, fmt.Sprintf("%s: %s", c.Type, c.Message))
		}
	}
	st.Conditions = []metav1.Condition{
		accepted,
		b.all(v1alpha1.ConditionReady, missing, "Ready", "NotReady", "requests are taken"),
		programmed, router, blocked,
		b.doubted(v1alpha1.ConditionServing, of, "Serving", "NotServing", "PodsNotRead", "every model has an endpoint that is ready"),
		b.doubted(v1alpha1.ConditionMetricsRead, of, "Read", "Unread", "NotTried", "what routing goes by is read"),
		b.all(v1alpha1.ConditionHonoured, b.notHonoured, "Honoured", "NotHonoured", "everything that is asked for has its effect"),
	}
}

// all is True where nothing is against it, and otherwise says all that is.
func (b *builder) all(kind string, against []string, good, bad, message string) metav1.Condition {
	if len(against) > 0 {
		return b.condition(kind, false, bad, strings.Join(against, "; "))
	}
	return b.condition(kind, true, good, message)
}

// doubts are what keeps a condition of the whole from holding: schedulers of which it does not, or nobody knows.
type doubts struct{ not, unknown []string }

func (d *doubts) take(c *metav1.Condition, text string) {
	switch c.Status {
	case metav1.ConditionFalse:
		d.not = append(d.not, text)
	case metav1.ConditionUnknown:
		d.unknown = append(d.unknown, text)
	}
}

// doubted is False where something is against it, Unknown where only that is not known, and says which.
func (b *builder) doubted(kind string, of map[string]*doubts, good, bad, untold, message string) metav1.Condition {
	if d := of[kind]; len(d.not) == 0 && len(d.unknown) > 0 {
		return b.unknown(kind, untold, strings.Join(d.unknown, "; "))
	}
	return b.all(kind, of[kind].not, good, bad, message)
}

// programmed says whether the data plane runs this.
func (b *builder) programmed() metav1.Condition {
	kind := v1alpha1.ConditionGatewayProgrammed
	if b.topology == v1alpha1.TopologyEmbedded {
		r := b.rollout(b.config.Namespace, embeddedOf(b.config.Name))
		state, why := rolloutState(r)
		return b.condition(kind, r != nil && r.Available > 0, "Embedded"+string(state), fmt.Sprintf("Deployment %q in namespace %q: %s", embeddedOf(b.config.Name), b.config.Namespace, why))
	}
	switch g := b.ctx.Gateway; {
	case b.others("Gateway", b.s.SystemNamespace, b.config.Name):
		return b.condition(kind, false, "NotOurs", b.taken("Gateway", b.s.SystemNamespace, b.config.Name))
	case len(b.missing) > 0:
		return b.condition(kind, false, "DefinitionsMissing", fmt.Sprintf("the API server does not know %s: install what brings them", strings.Join(b.missing, "; ")))
	case !b.s.Extension:
		return b.condition(kind, false, "ExtensionMissing", fmt.Sprintf("the Envoy Gateway of GatewayClass %q does not ask this controller about InferencePools, so that no request would be picked for: name its extension server in Envoy Gateway's extensionManager", b.s.GatewayClass))
	case g == nil:
		return b.condition(kind, false, "Pending", fmt.Sprintf("Gateway %q in namespace %q is not there yet", b.config.Name, b.s.SystemNamespace))
	case !g.Programmed:
		return b.condition(kind, false, "NotProgrammed", g.Message)
	}
	return b.condition(kind, true, "Programmed", fmt.Sprintf("Gateway %q in namespace %q runs this configuration", b.config.Name, b.s.SystemNamespace))
}

// router says whether what finds the model runs.
func (b *builder) router() metav1.Condition {
	kind := v1alpha1.ConditionBBRReady
	if !b.selects() {
		return b.condition(kind, true, "NotEnabled", "bbr.enabled is false: everything goes to the one scheduler")
	}
	namespace, name := b.config.Namespace, pickerOf(b.config.Name)
	switch b.topology {
	case v1alpha1.TopologySplit:
		namespace, name = b.s.SystemNamespace, routerOf(b.config.Name)
	case v1alpha1.TopologyEmbedded:
		name = embeddedOf(b.config.Name)
	}
	r := b.rollout(namespace, name)
	state, why := rolloutState(r)
	return b.condition(kind, r != nil && r.Available > 0, string(state), fmt.Sprintf("Deployment %q in namespace %q: %s", name, namespace, why))
}

// blocked says whether the API server refuses what is planned.
func (b *builder) blocked() metav1.Condition {
	if len(b.ctx.Refused) == 0 {
		return b.condition(v1alpha1.ConditionAdmissionBlocked, false, "NotBlocked", "the API server takes everything")
	}
	var lines []string
	for _, r := range b.ctx.Refused {
		lines = append(lines, r.Object+": "+r.Message)
	}
	return b.condition(v1alpha1.ConditionAdmissionBlocked, true, "AdmissionDenied", strings.Join(lines, "; "))
}

func (b *builder) rollout(namespace, name string) *Rollout {
	for i := range b.ctx.Rollouts {
		if r := &b.ctx.Rollouts[i]; r.Namespace == namespace && r.Name == name {
			return r
		}
	}
	return nil
}

// rolloutState is how far a Deployment has come, and that in words. Only one that was available once can be degraded.
func rolloutState(r *Rollout) (v1alpha1.RolloutState, string) {
	if r == nil {
		return v1alpha1.RolloutPending, "not there yet"
	}
	copies := fmt.Sprintf("%d of %d copies are available", r.Available, r.Wanted)
	switch {
	case r.Stuck != "":
		return v1alpha1.RolloutDegraded, copies + ", and it goes no further: " + r.Stuck
	case !r.Observed:
		return v1alpha1.RolloutProgressing, copies + ", of what was asked for before"
	case r.Updated >= r.Wanted && r.Available >= r.Wanted:
		return v1alpha1.RolloutAvailable, copies
	case r.Complete:
		return v1alpha1.RolloutDegraded, copies
	}
	return v1alpha1.RolloutProgressing, fmt.Sprintf("%s, %d are up to date", copies, r.Updated)
}

// schedulerStatus is a scheduler's entry, and why no request for it could be taken, empty where it could.
func (b *builder) schedulerStatus(s *v1alpha1.Scheduler) (one v1alpha1.SchedulerStatus, bad string) {
	one.Name = s.Name
	faults := b.perScheduler[s.Name]
	one.Conditions = append(one.Conditions, b.all(v1alpha1.ConditionAccepted, faults, "Accepted", "NotAccepted", "nothing contradicts it"))
	name := pickerOf(b.config.Name)
	switch b.topology {
	case v1alpha1.TopologySplit:
		name = schedulerOf(s.Name)
	case v1alpha1.TopologyEmbedded:
		name = embeddedOf(b.config.Name)
	}
	var r *Rollout
	if len(faults) == 0 {
		r = b.rollout(b.config.Namespace, name)
	}
	state, why := rolloutState(r)
	one.RolloutState = state
	if r != nil && r.Available > 0 {
		one.CurrentScheduler = s.Scheduler
	} else if len(faults) == 0 {
		bad = fmt.Sprintf("Deployment %q in namespace %q: %s", name, b.config.Namespace, why)
	}
	one.Conditions = append(one.Conditions, b.endpoints(s)...)
	return one, bad
}

// endpoints says of a scheduler's pods, and of the addresses that are listed for it, whether they can serve its model, and whether routing knows how they do.
func (b *builder) endpoints(s *v1alpha1.Scheduler) []metav1.Condition {
	selector, err := metav1.LabelSelectorAsSelector(s.ModelSelector)
	if err != nil {
		selector = labels.Nothing()
	}
	var seen, ready []*Pod
	for i := range b.ctx.Pods {
		p := &b.ctx.Pods[i]
		if !selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		seen = append(seen, p)
		if p.Ready && !p.Terminating {
			ready = append(ready, p)
		}
	}
	addresses := 0
	for _, one := range b.selected(s) {
		p := &Pod{Name: hostPort(one.entry.Address, *s.TargetPort)}
		if i := slices.IndexFunc(b.ctx.Addresses, func(a Pod) bool { return a.Name == p.Name }); i >= 0 {
			p = &b.ctx.Addresses[i]
		}
		addresses++
		seen = append(seen, p)
		if p.Ready && !one.entry.Drain {
			ready = append(ready, p)
		}
	}
	return []metav1.Condition{b.serving(s, selector, addresses, seen, ready), b.metricsRead(s, addresses > 0, ready)}
}

// serving says whether there is someone to send requests to. The last of those seen are addresses.
func (b *builder) serving(s *v1alpha1.Scheduler, selector labels.Selector, addresses int, seen, ready []*Pod) metav1.Condition {
	kind, noun, nobody := v1alpha1.ConditionServing, "pods", "no pod"
	if addresses > 0 {
		noun, nobody = "pods and addresses", "no pod or address"
	}
	switch {
	case len(b.perScheduler[s.Name]) > 0:
		return b.condition(kind, false, "NotAccepted", "nothing is made for it, and its model is answered 404")
	case b.ctx.PodsUnread != "":
		return b.unknown(kind, "PodsNotRead", b.ctx.PodsUnread)
	case len(seen) == 0:
		return b.condition(kind, false, "SelectorMatchesNothing", fmt.Sprintf("modelSelector matches no pod in namespace %q: compare it with the labels of kubectl get pods -n %s --show-labels; it says %s",
			b.config.Namespace, b.config.Namespace, metav1.FormatLabelSelector(s.ModelSelector)))
	case len(ready) == 0 && addresses > 0:
		return b.condition(kind, false, "NoReadyEndpoint", fmt.Sprintf("none of %d pods and %d addresses of Endpoints documents is ready, as far as pickers have said: ask them by kubectl sluice top", len(seen)-addresses, addresses))
	case len(ready) == 0:
		return b.condition(kind, false, "NoReadyPod", fmt.Sprintf("none of %d pods is ready: look at kubectl get pods -n %s -l '%s'", len(seen), b.config.Namespace, selector))
	}
	asked, names := 0, make(map[string]bool)
	for _, p := range ready {
		if p.Models == nil {
			continue
		}
		asked++
		for _, m := range p.Models {
			names[m] = true
		}
	}
	if asked == len(ready) && !names[s.ModelName] {
		others := make([]string, 0, len(names))
		for m := range names {
			others = append(others, m)
		}
		slices.Sort(others)
		return b.condition(kind, false, "ModelNotServed", fmt.Sprintf("%s serves %q; they serve %s: set modelName to what they serve, or start them with --served-model-name %s", nobody, s.ModelName, joined(others), s.ModelName))
	}
	return b.condition(kind, true, "Serving", fmt.Sprintf("%d of %d %s are ready", len(ready), len(seen), noun))
}

func (b *builder) metricsRead(s *v1alpha1.Scheduler, addresses bool, ready []*Pod) metav1.Condition {
	kind, noun := v1alpha1.ConditionMetricsRead, "pod"
	if addresses {
		noun = "endpoint"
	}
	var without, lacking, missing []string
	tried := 0
	for _, p := range ready {
		switch {
		case p.Metrics == nil:
			continue
		case !*p.Metrics:
			without = append(without, p.Name)
		case len(p.Missing) > 0:
			lacking, missing = append(lacking, p.Name), append(missing, p.Missing...)
		}
		tried++
	}
	slices.Sort(missing)
	slices.Sort(without)
	slices.Sort(lacking)
	missing = slices.Compact(missing)
	switch {
	case len(without) > 0:
		return b.condition(kind, false, "NoMetrics", fmt.Sprintf("%d of %d ready %ss give no metrics at port %d (%s), and are routed to by what this gateway counts itself: check targetPort, and for SGLang that it runs with --enable-metrics", len(without), len(ready), noun, *s.TargetPort, joined(without)))
	case len(missing) > 0:
		return b.condition(kind, false, "MetricUnknown", fmt.Sprintf("%s not among the metrics of %s, and left out of the choice: check engineType, which is %s, and the engine's version", joined(missing), joined(lacking), s.EngineType))
	case tried == 0:
		return b.unknown(kind, "NotTried", "no picker has read the metrics of a ready "+noun+" yet")
	}
	return b.condition(kind, true, "Read", fmt.Sprintf("the metrics of %d %ss are read", tried, noun))
}
