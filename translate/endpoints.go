package translate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// listed is an entry of an Endpoints document that some scheduler selects and its picker can use.
type listed struct {
	list   *v1alpha1.Endpoints
	entry  *v1alpha1.EndpointEntry
	chosen map[string]bool // the names of those that select it
}

// takeEndpoints finds out which entries of Endpoints documents schedulers select and pickers can use, and says why not the others.
func (b *builder) takeEndpoints() {
	selectors := make([]labels.Selector, len(b.config.Spec.Schedulers))
	for i := range selectors {
		var err error
		if selectors[i], err = metav1.LabelSelectorAsSelector(b.config.Spec.Schedulers[i].ModelSelector); err != nil {
			selectors[i] = labels.Nothing() // said elsewhere
		}
	}
	lists := slices.SortedFunc(slices.Values(b.ctx.Endpoints), func(x, y v1alpha1.Endpoints) int { return cmp.Compare(x.Name, y.Name) })
	for i := range lists {
		l := &lists[i]
		for j := range l.Spec.Endpoints {
			one := listed{list: l, entry: &l.Spec.Endpoints[j], chosen: make(map[string]bool)}
			set := make(labels.Set)
			maps.Copy(set, l.Spec.Labels)
			maps.Copy(set, one.entry.Labels)
			why := ""
			for n := range selectors {
				if s := &b.config.Spec.Schedulers[n]; selectors[n].Matches(set) {
					one.chosen[s.Name] = true
					why = cmp.Or(why, b.unusable(one.entry, s))
				}
			}
			switch {
			case why != "":
				b.notHonoured = append(b.notHonoured, fmt.Sprintf("Endpoints %q: spec.endpoints[%d]%s; until then it is left out", l.Name, j, why))
			case len(one.chosen) > 0: // it may be for another gateway
				b.listed = append(b.listed, one)
			}
		}
	}
}

// unusable says why a scheduler's picker can't use an entry, and what to do, empty where it can. One that a picker can't read the
// key of would keep it from everything else in its file.
func (b *builder) unusable(e *v1alpha1.EndpointEntry, s *v1alpha1.Scheduler) string {
	if k := e.APIKey; k != nil {
		switch {
		case k.File != "":
			return ".apiKey.file: no picker has such a file: set a variable by spec.podDefaults.env from a Secret, and name it in apiKey.env"
		case !b.variable(k.Env, s):
			return fmt.Sprintf(".apiKey.env: no picker has the variable %s: set it by spec.podDefaults.env, from a Secret", k.Env)
		}
	}
	if t := e.TLS; t != nil {
		switch {
		case t.CAFile != "":
			return ".tls.caFile: no picker has such a file: use a certificate of an authority that its image knows"
		case b.topology != v1alpha1.TopologyEmbedded:
			return ".tls: Envoys reach endpoints in plain text: use the topology Embedded, or a port without TLS"
		}
	}
	if b.topology != v1alpha1.TopologyEmbedded && !isIP(e.Address) {
		return fmt.Sprintf(".address: Envoys reach endpoints by IP address alone, and %s is a name: use the topology Embedded, or its address", e.Address)
	}
	return ""
}

// variable reports whether the process that serves a scheduler has a variable for sure: what envFrom brings, nobody here reads.
func (b *builder) variable(name string, s *v1alpha1.Scheduler) bool {
	has := func(list []corev1.EnvVar) bool {
		return slices.ContainsFunc(list, func(v corev1.EnvVar) bool { return v.Name == name })
	}
	if b.topology == v1alpha1.TopologySplit {
		return has(b.podEnv()) || has(s.Env)
	}
	return has(b.podEnv()) || slices.ContainsFunc(b.served(), func(s *v1alpha1.Scheduler) bool { return has(s.Env) })
}

// hostPort is an address with its port, that of the scheduler where it has none.
func hostPort(address string, port int32) string {
	if hasPort(address) {
		return address
	}
	return fmt.Sprintf("%s:%d", address, port)
}

func hasPort(address string) bool {
	return strings.LastIndexByte(address, ':') > strings.LastIndexByte(address, ']')
}

// isIP reports whether an address that its document may have is an IP address for everyone, and no name. One with a zone means
// something on one machine alone.
func isIP(address string) bool {
	if strings.HasPrefix(address, "[") {
		return !strings.Contains(address, "%")
	}
	host, _, _ := strings.Cut(address, ":")
	return strings.Trim(host, "0123456789.") == "" // a name does not end in a number
}

// selected are the entries that any of some schedulers selects.
func (b *builder) selected(schedulers ...*v1alpha1.Scheduler) []listed {
	var out []listed
	for _, one := range b.listed {
		if slices.ContainsFunc(schedulers, func(s *v1alpha1.Scheduler) bool { return one.chosen[s.Name] }) {
			out = append(out, one)
		}
	}
	return out
}

// addresses are where Envoys reach the entries that a scheduler selects, beside its pods.
func (b *builder) addresses(s *v1alpha1.Scheduler) string {
	var list []string
	for _, one := range b.selected(s) {
		if !one.entry.Drain { // requests that run there don't need it
			list = append(list, hostPort(one.entry.Address, *s.TargetPort))
		}
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), " ")
}

// lists are the Endpoints documents as far as they are for a workload.
func (b *builder) lists(w *workload) []any {
	if slices.Contains(w.does, flagSelectOnly) {
		return nil // it sends nothing anywhere
	}
	var docs []any
	var last *v1alpha1.Endpoints
	for _, one := range b.selected(w.schedulers...) {
		if last == nil || last.Name != one.list.Name {
			last = &v1alpha1.Endpoints{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GatewayGroup + "/" + v1alpha1.Version, Kind: v1alpha1.EndpointsKind},
				ObjectMeta: metav1.ObjectMeta{Name: one.list.Name}, Spec: v1alpha1.EndpointsSpec{Labels: one.list.Spec.Labels, KVEvents: one.list.Spec.KVEvents}}
			docs = append(docs, last)
		}
		last.Spec.Endpoints = append(last.Spec.Endpoints, *one.entry)
	}
	return docs
}
