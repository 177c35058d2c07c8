package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
)

// annotationEndpoint is where a pod says that it drains, as package config has it.
const annotationEndpoint = "gateway.sluice.dev/endpoint"

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
	b.notHonoured = slices.Concat(b.notHonoured, b.ctx.Unread, b.ctx.LeftOut, b.ctx.Misheard)
	if d := spec.BBR.DefaultBackend; d != nil && !b.selects() {
		b.notHonoured = append(b.notHonoured, "spec.bbr.defaultBackend has nothing to receive while bbr.enabled is false: everything goes to the one scheduler")
	} else if d != nil {
		b.checkBackend(d)
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

// checkBackend finds what keeps the default backend from getting requests. One that isn't there is left out of what is planned: the data
// plane would say that it does not run a route to it, and so of a gateway whose models are answered that it is not programmed.
func (b *builder) checkBackend(d *v1alpha1.DefaultBackend) {
	const field = "spec.bbr.defaultBackend"
	say := func(format string, args ...any) { b.notHonoured = append(b.notHonoured, fmt.Sprintf(format, args...)) }
	i := slices.IndexFunc(b.ctx.Services, func(s Service) bool { return s.Name == d.Name })
	switch {
	case i < 0:
		say("%s.name: there is no Service %q in namespace %q, so that requests for models of no scheduler are answered 404: create it", field, d.Name, b.config.Namespace)
		return
	case !slices.Contains(b.ctx.Services[i].Ports, *d.Port):
		say("%s.port: Service %q in namespace %q does not have port %d, so that requests for models of no scheduler are answered 404: set it to one that it has (%s)",
			field, d.Name, b.config.Namespace, *d.Port, cmp.Or(numbers(b.ctx.Services[i].Ports), "it has none for TCP"))
		return
	}
	b.backend = d
	host := hostPort(b.backendHost(), *d.Port)
	if i := slices.IndexFunc(b.ctx.Addresses, func(p Pod) bool { return p.Name == host }); i >= 0 {
		if t := b.ctx.Addresses[i].tried(v1alpha1.DefaultBackendPool); t.Lasts {
			say("%s: pickers don't reach Service %q at port %d (%s), so that requests for models of no scheduler are answered 503: it has no pod that is ready, its targetPort is another one than theirs, or they are no model servers; kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s shows those that are ready",
				field, d.Name, *d.Port, t.Why, b.config.Namespace, d.Name)
		}
	}
}

// backendHost is the name of the default backend's Service that means the same in every namespace.
func (b *builder) backendHost() string { return b.backend.Name + "." + b.config.Namespace + ".svc" }

// numbers are ports in words, empty for none.
func numbers(ports []int32) string {
	words := make([]string, len(ports))
	for i, p := range ports {
		words[i] = strconv.Itoa(int(p))
	}
	return strings.Join(words, ", ")
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

// idlePolicies says of policies for one scheduler that is left out what they wait for.
func (b *builder) idlePolicies() {
	for _, p := range b.policies {
		section := p.Spec.TargetRef.SectionName
		if section == "" || len(b.perScheduler[section]) == 0 {
			continue
		}
		for i := range b.plan.Policies {
			if said := &b.plan.Policies[i]; said.Name == p.Name {
				said.Status.Conditions[0].Message = fmt.Sprintf("in force, and without effect as long as nothing is made for scheduler %q: look at its condition Accepted", section)
			}
		}
	}
}

// status says what holds, and what does not, and why.
func (b *builder) status() {
	b.idlePolicies()
	st := &b.plan.Status
	st.ObservedGeneration = b.config.Generation
	refused := slices.Clone(b.notAccepted) // the whole of it
	var waiting, missing []string
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
			waiting = append(waiting, fmt.Sprintf("scheduler %q: %s", s.Name, bad))
		}
		for _, fault := range b.perScheduler[s.Name] {
			b.notAccepted = append(b.notAccepted, fmt.Sprintf("scheduler %q: %s", s.Name, fault))
		}
	}
	accepted := b.all(v1alpha1.ConditionAccepted, b.notAccepted, "Accepted", "NotAccepted", "nothing contradicts the document")
	programmed, router, blocked := b.programmed(), b.router(), b.blocked()
	for _, c := range []metav1.Condition{programmed, router} {
		if c.Status != metav1.ConditionTrue {
			waiting = append(waiting, fmt.Sprintf("%s: %s", c.Type, c.Message))
		}
	}
	if len(b.notAccepted) > 0 {
		missing = append(missing, fmt.Sprintf("%s: %s", accepted.Type, accepted.Message))
	}
	missing = append(missing, waiting...)
	st.Conditions = []metav1.Condition{
		accepted,
		b.all(v1alpha1.ConditionReady, missing, "Ready", "NotReady", "requests are taken"),
		programmed, router, blocked,
		b.answered(of, refused, waiting),
		b.doubted(v1alpha1.ConditionMetricsRead, of, "Read", "Unread", "NotTried", "what routing goes by is read"),
		b.all(v1alpha1.ConditionHonoured, b.notHonoured, "Honoured", "NotHonoured", "everything that is asked for has its effect"),
	}
}

// Deleted is the status of a configuration that is being deleted, whose parts are taken away, and that finalizers of others keep:
// nothing else holds of it any more.
func Deleted(config *v1alpha1.InferenceGatewayConfig, keptBy []string) *v1alpha1.InferenceGatewayConfigStatus {
	b := &builder{config: config}
	message := fmt.Sprintf("it is being deleted, and its parts are taken away, so that nobody answers; it is kept by finalizer %s, which whoever put it there takes out", strings.Join(keptBy, " and "))
	return &v1alpha1.InferenceGatewayConfigStatus{ObservedGeneration: config.Generation, Conditions: []metav1.Condition{
		b.condition(v1alpha1.ConditionReady, false, "Deleted", message), b.condition(v1alpha1.ConditionServing, false, "Deleted", message)}}
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

// answered says whether requests for every model are answered: the document is not refused, nothing is waited for that is on
// their way, and each has an endpoint. While pickers of another topology go on, nothing is.
func (b *builder) answered(of map[string]*doubts, refused, waiting []string) metav1.Condition {
	kind := v1alpha1.ConditionServing
	switch {
	case len(refused) > 0:
		return b.condition(kind, false, "NotAccepted", strings.Join(refused, "; "))
	case len(of[kind].not) == 0 && len(waiting) > 0 && !b.outgoing():
		return b.condition(kind, false, "NotReady", strings.Join(waiting, "; "))
	}
	return b.doubted(kind, of, serving, "NotServing", "PodsNotRead", "every model has an endpoint that is ready")
}

// outgoing reports whether every scheduler has a picker of another topology, which stays until those that are planned run.
func (b *builder) outgoing() bool {
	served := b.served()
	return len(served) > 0 && !slices.ContainsFunc(served, func(s *v1alpha1.Scheduler) bool {
		return !slices.ContainsFunc([]v1alpha1.Topology{v1alpha1.TopologyFused, v1alpha1.TopologySplit, v1alpha1.TopologyEmbedded}, func(t v1alpha1.Topology) bool {
			r := b.rollout(b.config.Namespace, b.servedBy(s, t))
			return t != b.topology && r != nil && r.Available > 0
		})
	})
}

// servedBy is the Deployment whose pods pick for a scheduler in a topology.
func (b *builder) servedBy(s *v1alpha1.Scheduler, t v1alpha1.Topology) string {
	switch t {
	case v1alpha1.TopologySplit:
		return schedulerOf(s.Name)
	case v1alpha1.TopologyEmbedded:
		return embeddedOf(b.config.Name)
	}
	return pickerOf(b.config.Name)
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
		return b.condition(kind, false, "ExtensionMissing", fmt.Sprintf("this controller has no extension server for an Envoy Gateway to ask about InferencePools, so that no request would be picked for: set envoyGateway.extension=true in its chart, and name the server in the extensionManager of the Envoy Gateway of GatewayClass %q", b.s.GatewayClass))
	case g == nil:
		return b.condition(kind, false, "Pending", fmt.Sprintf("Gateway %q in namespace %q is not there yet", b.config.Name, b.s.SystemNamespace))
	case !g.Programmed && b.ctx.ClassFault != "":
		return b.condition(kind, false, "NotProgrammed", b.ctx.ClassFault)
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
	name := b.servedBy(s, b.topology)
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
	selector, seen, ready, drain := b.pods(s)
	addresses := len(b.selected(s))
	return []metav1.Condition{b.serving(s, selector, addresses, seen, ready, drain), b.metricsRead(s, addresses > 0, ready)}
}

// pods are those that a scheduler selects, and after them its addresses: all of them, those that are ready and may be sent
// something, and those that drain.
func (b *builder) pods(s *v1alpha1.Scheduler) (selector labels.Selector, seen, ready, drain []*Pod) {
	selector, err := metav1.LabelSelectorAsSelector(s.ModelSelector)
	if err != nil {
		selector = labels.Nothing()
	}
	for i := range b.ctx.Pods {
		p := &b.ctx.Pods[i]
		if !selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		seen = append(seen, p)
		switch {
		case p.Terminating:
		case p.Drain:
			drain = append(drain, p)
		case p.Ready:
			ready = append(ready, p)
		}
	}
	for _, one := range b.selected(s) {
		p := &Pod{Name: hostPort(one.entry.Address, *s.TargetPort)}
		if i := slices.IndexFunc(b.ctx.Addresses, func(a Pod) bool { return a.Name == p.Name }); i >= 0 {
			p = &b.ctx.Addresses[i]
		}
		seen = append(seen, p)
		switch {
		case one.entry.Drain:
			drain = append(drain, p)
		case p.Ready:
			ready = append(ready, p)
		}
	}
	return selector, seen, ready, drain
}

// draining is the reason of the condition Serving that ends with what documents and annotations say.
const draining = "Draining"

// Reasons of the condition Serving that pickers have found out.
const (
	serving    = "Serving"
	noEndpoint = "NoReadyEndpoint"
	notServed  = "ModelNotServed"
)

// said is what the document's status says of a scheduler, nil for nothing.
func (b *builder) said(s *v1alpha1.Scheduler, kind string) *metav1.Condition {
	for i := range b.config.Status.Schedulers {
		if one := &b.config.Status.Schedulers[i]; one.Name == s.Name {
			return meta.FindStatusCondition(one.Conditions, kind)
		}
	}
	return nil
}

// serving says whether there is someone to send requests to, whether or not something brings them there: that the condition of the
// whole says, once and not for each scheduler. The last of those seen are addresses.
func (b *builder) serving(s *v1alpha1.Scheduler, selector labels.Selector, addresses int, seen, ready, drain []*Pod) metav1.Condition {
	kind, noun, nobody := v1alpha1.ConditionServing, "pods", "no pod"
	if addresses > 0 {
		noun, nobody = "pods and addresses", "no pod or address"
	}
	lost, reached := tell(s, ready)
	switch {
	case len(b.perScheduler[s.Name]) > 0:
		return b.condition(kind, false, "NotAccepted", "nothing is made for it, and "+b.elsewhere(s))
	case b.ctx.PodsUnread != "":
		return b.unknown(kind, "PodsNotRead", b.ctx.PodsUnread)
	case len(seen) == 0:
		return b.condition(kind, false, "SelectorMatchesNothing", fmt.Sprintf("modelSelector matches no pod in namespace %q: compare it with the labels of kubectl get pods -n %s --show-labels; it says %s",
			b.config.Namespace, b.config.Namespace, metav1.FormatLabelSelector(s.ModelSelector)))
	case len(ready) == 0:
		return b.noneReady(s, selector, noun, addresses, seen, drain)
	case len(lost) == len(ready):
		return b.condition(kind, false, noEndpoint, fmt.Sprintf("no picker reaches any of %d ready pods%s, and requests are answered 503: %s; kubectl sluice top shows each",
			len(ready), at(s, lost)+why(s, lost), mend(s, lost, "set targetPort to the port where they listen, or let pickers through to it")))
	}
	if was := b.said(s, kind); was != nil && (was.Reason == noEndpoint || was.Reason == notServed) && !slices.ContainsFunc(reached, func(p *Pod) bool { return p.tried(s.Name).Metrics != nil }) {
		return *was // a controller that has just begun knows less than what was found before
	}
	if others := otherModels(s, reached); others != nil {
		return b.condition(kind, false, notServed, fmt.Sprintf("%s serves %q; they serve %s: set modelName to what they serve, or start them with --served-model-name %s", nobody, s.ModelName, joined(others), s.ModelName))
	}
	return b.condition(kind, true, serving, fmt.Sprintf("%d of %d %s are ready", len(ready)-len(lost), len(seen), noun))
}

// unheard reports whether some addresses may be sent something, and no picker has said yet that it has looked at one of those.
func unheard(s *v1alpha1.Scheduler, addresses, drain []*Pod) bool {
	asked := slices.DeleteFunc(slices.Clone(addresses), func(p *Pod) bool { return slices.Contains(drain, p) })
	return len(asked) > 0 && !slices.ContainsFunc(asked, func(p *Pod) bool { return p.tried(s.Name).Metrics != nil })
}

// noneReady is what there is to say where nobody may be sent anything.
func (b *builder) noneReady(s *v1alpha1.Scheduler, selector labels.Selector, noun string, addresses int, seen, drain []*Pod) metav1.Condition {
	kind := v1alpha1.ConditionServing
	was := b.said(s, kind)
	switch {
	case was != nil && slices.Contains([]string{serving, noEndpoint, notServed}, was.Reason) && unheard(s, seen[len(seen)-addresses:], drain):
		return *was // a controller that has just begun knows less than what was found before
	case len(drain) == len(seen):
		return b.condition(kind, false, draining, fmt.Sprintf("all %d %s drain, so that requests are answered 503: take drain out of %s", len(seen), noun, b.drainedBy(selector, drain)))
	case len(drain) > 0:
		return b.condition(kind, false, draining, fmt.Sprintf("%d of %d %s drain, and none of the others is ready, so that requests are answered 503: take drain out of %s", len(drain), len(seen), noun, b.drainedBy(selector, drain)))
	case addresses > 0:
		return b.condition(kind, false, noEndpoint, fmt.Sprintf("none of %d pods and %d addresses of Endpoints documents is ready, as far as pickers have said%s: ask them by kubectl sluice top", len(seen)-addresses, addresses, why(s, seen)))
	}
	return b.condition(kind, false, "NoReadyPod", fmt.Sprintf("none of %d pods is ready: look at kubectl get pods -n %s -l '%s'", len(seen), b.config.Namespace, selector))
}

// drainedBy says where it is written that pods and addresses drain, and how to take it out there.
func (b *builder) drainedBy(selector labels.Selector, drain []*Pod) string {
	var places []string
	if slices.ContainsFunc(drain, func(p *Pod) bool { return p.Drain }) {
		places = append(places, fmt.Sprintf("the pods' annotation %s, or take all of it away by kubectl annotate pod -n %s -l '%s' %s-", annotationEndpoint, b.config.Namespace, selector, annotationEndpoint))
	}
	if slices.ContainsFunc(drain, func(p *Pod) bool { return !p.Drain }) {
		places = append(places, "their entries in Endpoints documents")
	}
	return strings.Join(places, "; and out of ")
}

// tell tells those that pickers don't reach for some time from those that they do, or that nobody has tried. One that is out of reach
// at one look may be back at the next, and is neither: a picker or a model server that is a moment late is no change.
func tell(s *v1alpha1.Scheduler, ready []*Pod) (lost, reached []*Pod) {
	for _, p := range ready {
		switch t := p.tried(s.Name); {
		case t.Lasts:
			lost = append(lost, p)
		case t.Why == "":
			reached = append(reached, p)
		}
	}
	return lost, reached
}

// otherModels are the models of endpoints that have all been asked and don't serve their scheduler's; nil where one does, or may.
func otherModels(s *v1alpha1.Scheduler, reached []*Pod) []string {
	if len(reached) == 0 {
		return nil
	}
	others := []string{} // of those that list nothing, none
	for _, p := range reached {
		models := p.tried(s.Name).Models
		if models == nil || slices.Contains(models, s.ModelName) {
			return nil
		}
		others = append(others, models...)
	}
	slices.Sort(others)
	return slices.Compact(others)
}

// elsewhere says what becomes of requests for the model of a scheduler that is left out.
func (b *builder) elsewhere(s *v1alpha1.Scheduler) string {
	if !b.selects() {
		return "requests are answered 404"
	}
	for _, other := range b.served() {
		if b.serves(other, s.ModelName) {
			return fmt.Sprintf("requests for its model go to scheduler %q, which serves it, too", other.Name)
		}
	}
	for i := range b.ctx.Rewrites {
		r := &b.ctx.Rewrites[i]
		if p := r.Spec.PoolRef; p == nil || !slices.ContainsFunc(b.served(), func(o *v1alpha1.Scheduler) bool { return o.Name == p.Name }) {
			continue
		}
		for _, rule := range r.Spec.Rules {
			if slices.ContainsFunc(rule.Matches, func(m v1alpha2.RewriteMatch) bool { return m.Model != nil && m.Model.Value == s.ModelName }) {
				return fmt.Sprintf("InferenceModelRewrite %q says where requests for its model go", r.Name)
			}
		}
	}
	if d := b.backend; d != nil {
		return fmt.Sprintf("requests for its model go to spec.bbr.defaultBackend, Service %q", d.Name)
	}
	return "its model is answered 404"
}

// serves reports whether requests for a name go to a scheduler: as one of its adapters, or since one of its endpoints lists it.
func (b *builder) serves(s *v1alpha1.Scheduler, model string) bool {
	if slices.Contains(s.LoRAAdapters, model) {
		return true
	}
	models, known := b.models[s.Name]
	if !known {
		_, _, ready, _ := b.pods(s)
		for _, p := range ready {
			models = append(models, p.tried(s.Name).Models...)
		}
		b.models[s.Name] = models
	}
	return slices.Contains(models, model)
}

// why is the reason of the first of some pods or addresses that pickers don't reach, in brackets; empty where there is none.
func why(s *v1alpha1.Scheduler, list []*Pod) string {
	for _, p := range list {
		if t := p.tried(s.Name); t.Why != "" {
			return fmt.Sprintf(" (%s: %s)", p.Name, t.Why)
		}
	}
	return ""
}

// mend is what to do about those that pickers don't reach: what the first one's reason says, where it names the setting, else usually.
func mend(s *v1alpha1.Scheduler, list []*Pod, usually string) string {
	if strings.Contains(why(s, list), "appProtocol") {
		return fmt.Sprintf("appProtocol is %s, and has to be what they speak", s.AppProtocol)
	}
	return usually
}

// at is the port where pickers look for pods, as long as they do that of all at one: for a while that is another one than the
// document's, where they have not taken it over or never will.
func at(s *v1alpha1.Scheduler, list []*Pod) string {
	port := int32(0)
	for _, p := range list {
		t := p.tried(s.Name)
		switch {
		case t.Port == 0 && len(p.Labels) == 0: // an address
			return ""
		case t.Port == 0:
			t.Port = *s.TargetPort
		}
		if port != 0 && port != t.Port {
			return ""
		}
		port = t.Port
	}
	if port != *s.TargetPort {
		return fmt.Sprintf(" at port %d, where pickers look until they have taken over the document's %d", port, *s.TargetPort)
	}
	return fmt.Sprintf(" at port %d", port)
}

func (b *builder) metricsRead(s *v1alpha1.Scheduler, addresses bool, ready []*Pod) metav1.Condition {
	kind, noun := v1alpha1.ConditionMetricsRead, "pod"
	if addresses {
		noun = "endpoint"
	}
	var lost, without []*Pod
	var lacking, missing []string
	tried := 0
	for _, p := range ready {
		switch t := p.tried(s.Name); {
		case t.Metrics == nil:
			continue
		case t.Why != "":
			lost = append(lost, p)
		case !*t.Metrics:
			without = append(without, p)
		case len(t.Missing) > 0:
			lacking, missing = append(lacking, p.Name), append(missing, t.Missing...)
		}
		tried++
	}
	slices.Sort(missing)
	slices.Sort(lacking)
	missing = slices.Compact(missing)
	switch {
	case len(lost) > 0:
		return b.condition(kind, false, "NotReached", fmt.Sprintf("%d of %d ready %ss can't be reached%s%s, and get no requests: %s", len(lost), len(ready), noun, at(s, lost), why(s, lost), mend(s, lost, "check targetPort, and that pickers may connect there")))
	case len(without) > 0:
		return b.condition(kind, false, "NoMetrics", fmt.Sprintf("%d of %d ready %ss give no metrics%s (%s), and are routed to by what this gateway counts itself: check targetPort, and for SGLang that it runs with --enable-metrics", len(without), len(ready), noun, at(s, without), joined(namesOf(without))))
	case len(missing) > 0:
		return b.condition(kind, false, "MetricUnknown", fmt.Sprintf("%s not among the metrics of %s, and left out of the choice: check engineType, which is %s, and the engine's version", joined(missing), joined(lacking), s.EngineType))
	case tried == 0 && len(b.perScheduler[s.Name]) > 0:
		return b.unknown(kind, "NotTried", "nothing is made for it, so that nobody reads the metrics of its "+noun+"s")
	case tried == 0:
		return b.unknown(kind, "NotTried", "no picker has read the metrics of a ready "+noun+" yet")
	}
	return b.condition(kind, true, "Read", fmt.Sprintf("the metrics of %d %ss are read", tried, noun))
}

// namesOf are the names of pods, in order.
func namesOf(list []*Pod) []string {
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = p.Name
	}
	slices.Sort(names)
	return names
}
