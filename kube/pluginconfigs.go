package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// configs looks at every configuration that may be seen, and at the pickers of each.
func (e *examination) configs(ctx context.Context) {
	const what = "configurations"
	var list v1alpha1.InferenceGatewayConfigList
	if err := e.read(ctx, &list, nil, pathIGWC, "inferencegatewayconfigs"); err != nil {
		own := e.read(ctx, &list, nil, pathTo(pathIGWC, e.Namespace, "inferencegatewayconfigs")...)
		if own != nil {
			e.unseen(what, err)
			return
		}
		e.say(LevelWarn, what, "those of namespace %q alone are looked at: %v", e.Namespace, err)
	}
	if len(list.Items) == 0 {
		e.say(LevelWarn, what, "there is no InferenceGatewayConfig: deploy/examples has some")
	}
	for i := range list.Items {
		e.config(ctx, &list.Items[i])
	}
	e.policies(ctx)
}

// config says what is of a configuration that is not as it should be.
func (e *examination) config(ctx context.Context, c *v1alpha1.InferenceGatewayConfig) {
	what := "gateway " + c.Namespace + "/" + c.Name
	if e.going(what, "igwc", c) {
		return
	}
	if len(c.Status.Conditions) == 0 || c.Status.ObservedGeneration < c.Generation {
		e.say(LevelFail, what, "the controller has not looked at this version of it: see the controller above")
		return
	}
	list, err := e.pickersOf(ctx, c.Namespace, c.Name)
	if err != nil {
		e.unseen(what+", its pickers", err)
	}
	e.gateway(ctx, what, c, list)
}

// gateway says of a configuration that was looked at, and has these pickers, what keeps requests from being answered. What pickers
// say is of now, where conditions may be of half a minute ago: both have to be fine.
func (e *examination) gateway(ctx context.Context, what string, c *v1alpha1.InferenceGatewayConfig, list []Picker) {
	fine := e.conditions(what, c)
	if fails := e.pickers(ctx, what, list); fine && !fails {
		e.say(LevelOK, what, "takes requests, and has endpoints for %s", counted(len(c.Spec.Schedulers), "model"))
	}
}

// conditions says which conditions of a configuration are not as they should be, and reports whether requests are answered by them.
func (e *examination) conditions(what string, c *v1alpha1.InferenceGatewayConfig) (fine bool) {
	fine, ready := true, metav1.Condition{}
	for _, cond := range c.Status.Conditions {
		if cond.Type == v1alpha1.ConditionReady {
			ready = cond
			continue
		}
		if v, told := judge(cond); told && (fine || !repeats(cond)) {
			fine = fine && v != LevelFail
			e.say(v, what, "%s is %s (%s): %s", cond.Type, cond.Status, cond.Reason, cond.Message)
		}
	}
	if ready.Status != metav1.ConditionTrue && fine { // otherwise it repeats the others
		fine = false
		e.say(LevelFail, what, "Ready is %s (%s): %s", ready.Status, ready.Reason, ready.Message)
	}
	for _, s := range c.Status.Schedulers {
		if s.RolloutState == v1alpha1.RolloutDegraded {
			fine = false
			e.say(LevelWarn, what, "scheduler %q has lost copies of its picker", s.Name)
		}
	}
	return fine
}

// repeats reports whether a condition says what other ones before it say.
func repeats(c metav1.Condition) bool {
	return c.Type == v1alpha1.ConditionServing && (c.Reason == "NotReady" || c.Reason == "NotAccepted")
}

// going says of an object that is being deleted what keeps it, and reports whether it is.
func (e *examination) going(what, resource string, o metav1.Object) bool {
	since := o.GetDeletionTimestamp()
	if since == nil {
		return false
	}
	text := "is being deleted since " + since.UTC().Format(time.RFC3339)
	mine := slices.Contains(o.GetFinalizers(), finalizer)
	others := finalizersOfOthers(o)
	takeOut := func(left []string) string {
		raw, _ := json.Marshal(left) // strings alone
		return fmt.Sprintf("kubectl -n %s patch %s %s --type merge -p '{\"metadata\":{\"finalizers\":%s}}'", o.GetNamespace(), resource, o.GetName(), raw)
	}
	if mine {
		text += ", kept by finalizer " + finalizer + " until the controller has removed what it made for it"
		switch {
		case e.controller == nil:
			text += ": install it again, where it isn't there any more, or, if what it made is to stay, " + takeOut(append([]string{}, others...))
		default:
			text += fmt.Sprintf("; if that lasts, kubectl -n %s logs deployment/%s says why", e.controller.Namespace, e.controller.Name)
		}
	}
	if len(others) > 0 {
		left := []string{}
		if mine {
			left = []string{finalizer}
		}
		text += fmt.Sprintf(", kept by finalizer %s, which whoever put it there takes out; if nobody does any more, %s", strings.Join(others, " and "), takeOut(left))
	}
	e.say(LevelWarn, what, "%s", text)
	return true
}

// judge says what a condition comes to, and whether it is worth a line.
func judge(c metav1.Condition) (v Level, told bool) {
	wanted := metav1.ConditionTrue
	if c.Type == v1alpha1.ConditionAdmissionBlocked {
		wanted = metav1.ConditionFalse
	}
	switch {
	case c.Status == wanted:
		return LevelOK, false
	case c.Status == metav1.ConditionUnknown, slices.Contains([]string{v1alpha1.ConditionMetricsRead, v1alpha1.ConditionHonoured, v1alpha1.ConditionGlobalRouting}, c.Type):
		return LevelWarn, true
	}
	return LevelFail, true
}

// pickers asks each picker how it is, and whom of its peers it hears. It reports whether requests fail by what one says.
func (e *examination) pickers(ctx context.Context, what string, list []Picker) (fails bool) {
	copies := make(map[string]int)
	for _, p := range list {
		copies[p.Deployment]++
	}
	good, endpoints, empty := 0, 0, []string(nil)
	for _, p := range list {
		raw, err := e.Ask(ctx, p, "console/state", nil)
		if err != nil {
			e.say(LevelWarn, what, "%v", err)
			continue
		}
		var s pickerState
		if err := json.Unmarshal(raw, &s); err != nil {
			e.say(LevelWarn, what, "picker %q answers what can't be read: %v", p.Name, err)
			continue
		}
		if faults, bad := s.faults(copies[p.Deployment] - 1); len(faults) > 0 {
			level := LevelWarn
			if bad {
				level, fails = LevelFail, true
			}
			e.say(level, what, "picker %q %s", p.Name, strings.Join(faults, "; it "))
			continue
		}
		good++
		has, without := s.counts()
		endpoints, empty = endpoints+has, append(empty, without...)
	}
	if good > 0 {
		text := fmt.Sprintf("%d of %d pickers see their peers", good, len(list))
		if endpoints > 0 {
			text += ", and every endpoint ready"
		}
		if len(empty) > 0 {
			slices.Sort(empty)
			text += ", and have no endpoint of " + strings.Join(slices.Compact(empty), ", ")
		}
		e.say(LevelOK, what, "%s", text)
	}
	return fails
}

// pickerState is what is read of a picker's console.
type pickerState struct {
	Sides []struct {
		Peers []struct {
			Name        string `json:"name"`
			Told, Heard bool
		} `json:"peers"`
		Pools []poolState `json:"pools"`
	} `json:"sides"`
}

// poolState is what is read there of a pool.
type poolState struct {
	Name      string `json:"name"`
	Endpoints []struct {
		Name  string `json:"name"`
		State string `json:"state"`
		Why   string `json:"why"`
	} `json:"endpoints"`
}

// counts is how many endpoints a picker has in all, and which pools have none.
func (s *pickerState) counts() (endpoints int, empty []string) {
	for _, side := range s.Sides {
		for _, pool := range side.Pools {
			if endpoints += len(pool.Endpoints); len(pool.Endpoints) == 0 {
				empty = append(empty, pool.Name)
			}
		}
	}
	return endpoints, empty
}

// faults are what a picker says that is not as it should be, where it has so many peers. Requests fail where no endpoint of
// a pool that has some takes any.
func (s *pickerState) faults(peers int) (out []string, fails bool) {
	for _, side := range s.Sides {
		seen := 0
		for _, p := range side.Peers {
			if p.Told && p.Heard {
				seen++
			}
		}
		if seen < peers {
			out = append(out, fmt.Sprintf("sees %d of %d peers, and decides without the others: look at their logs for \"peer\"", seen, peers))
		}
		for i := range side.Pools {
			text, none := side.Pools[i].fault()
			if text != "" {
				out = append(out, text)
			}
			fails = fails || none
		}
	}
	return out, fails
}

// fault is what is wrong with the endpoints of a pool, empty for nothing, and whether none of them takes requests.
func (p *poolState) fault() (text string, none bool) {
	var not []string
	in := make(map[string]int) // how many are in each state
	for _, e := range p.Endpoints {
		in[e.State]++
		if e.State != stateReady {
			not = append(not, fmt.Sprintf("%s is %s (%s)", e.Name, e.State, e.Why))
		}
	}
	const most = 3
	if more := len(not) - most; more > 0 {
		not = append(not[:most], fmt.Sprintf("and %d more", more))
	}
	all := strings.Join(not, ", ")
	switch {
	case in[stateNotReady] > 0 && in[stateNotReady] == len(p.Endpoints) && p.Name == v1alpha1.DefaultBackendPool:
		return fmt.Sprintf("does not reach the %s, so that requests for models of no scheduler are answered 503: %s; see that the Service of spec.bbr.defaultBackend has pods that are ready, and that its targetPort is theirs", p.Name, all), true
	case in[stateNotReady] > 0 && in[stateNotReady] == len(p.Endpoints):
		text = fmt.Sprintf("reaches no endpoint of %s, so that requests are answered 503: %s", p.Name, all)
		if !strings.Contains(all, "appProtocol") { // the reason names the setting itself
			text += "; look at targetPort, and whether a NetworkPolicy keeps pickers out"
		}
		return text, true
	case in[stateDraining] > 0 && in[stateDraining]+in[stateNotReady] == len(p.Endpoints):
		return fmt.Sprintf("has no endpoint of %s that takes requests, so that they are answered 503: %s", p.Name, all), true
	case len(not) > 0:
		return fmt.Sprintf("does not count on endpoints of %s: %s", p.Name, all), false
	}
	return "", false
}

// policies says which policies are not in force.
func (e *examination) policies(ctx context.Context) {
	var list v1alpha1.GatewayPolicyList
	if err := e.read(ctx, &list, nil, pathOurs, "gatewaypolicies"); err != nil {
		return // the definitions, or the rights, were said before
	}
	for i := range list.Items {
		p := &list.Items[i]
		what := "policy " + p.Namespace + "/" + p.Name
		if e.going(what, "gatewaypolicy", p) {
			continue
		}
		if len(p.Status.Conditions) == 0 {
			e.say(LevelWarn, what, "nobody has looked at it: spec.targetRef.name is %q; is there an InferenceGatewayConfig of that name in its namespace?", p.Spec.TargetRef.Name)
		}
		for _, c := range p.Status.Conditions {
			if v, told := judge(c); told {
				e.say(v, what, "%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message)
			}
		}
	}
}
