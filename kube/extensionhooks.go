package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/apimachinery/pkg/types"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/translate"
)

// use is a pool as a route has it: as much of what Envoy Gateway knows of it as Envoy's configuration depends on. All else
// Envoys are told of as it changes.
type use struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Picker is the Service that it names, as the host of a request; empty for none.
	Picker string `json:"picker,omitempty"`
	// Open: requests go on where the picker can't be asked.
	Open bool `json:"open,omitempty"`
	// H2C: endpoints speak HTTP/2 with prior knowledge.
	H2C bool `json:"h2c,omitempty"`
	// Config is the configuration that the pool was made for, NAMESPACE/NAME, and Scheduler its entry; empty for others' pools.
	Config    string `json:"config,omitempty"`
	Scheduler string `json:"scheduler,omitempty"`
}

func (u *use) key() types.NamespacedName {
	return types.NamespacedName{Namespace: u.Namespace, Name: u.Name}
}

// useOf reads what Envoy Gateway sends of a backend. It is nil for what is no InferencePool.
func useOf(text []byte) (*use, error) {
	var pool poolv1.InferencePool
	if err := json.Unmarshal(text, &pool); err != nil {
		return nil, fmt.Errorf("cannot read a backend that Envoy Gateway sent: %w", err)
	}
	if pool.Kind != "InferencePool" || !strings.HasPrefix(pool.APIVersion, poolv1.GroupName+"/") {
		return nil, nil
	}
	u := &use{Namespace: pool.Namespace, Name: pool.Name, H2C: pool.Spec.AppProtocol == poolv1.AppProtocolH2C}
	if ref := pool.Spec.EndpointPickerRef; ref != nil {
		u.Picker = fmt.Sprintf("%s.%s.svc:%d", ref.Name, pool.Namespace, pickerPort(ref))
		u.Open = ref.FailureMode == poolv1.EndpointPickerFailOpen
	}
	if pool.Labels[translate.LabelManagedBy] == translate.ManagedBy {
		u.Config, u.Scheduler = pool.Annotations[translate.AnnotationOwner], pool.Labels[translate.LabelScheduler]
	}
	return u, nil
}

// stampKey is where a route's pools are noted between the two calls that Envoy Gateway makes about it.
const stampKey = "sluice"

// stamp notes what pools a route has.
func stamp(r *routev3.Route, uses []*use) error {
	text, err := json.Marshal(uses)
	if err != nil {
		return err
	}
	if r.Metadata == nil {
		r.Metadata = new(corev3.Metadata)
	}
	if r.Metadata.FilterMetadata == nil {
		r.Metadata.FilterMetadata = make(map[string]*structpb.Struct)
	}
	r.Metadata.FilterMetadata[stampKey] = &structpb.Struct{Fields: map[string]*structpb.Value{"pools": structpb.NewStringValue(string(text))}}
	return nil
}

// stampOf reads what stamp wrote.
func stampOf(r *routev3.Route) (uses []*use, err error) {
	s := r.GetMetadata().GetFilterMetadata()[stampKey]
	if s == nil {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(s.Fields["pools"].GetStringValue()), &uses); err != nil {
		return nil, fmt.Errorf("cannot read the note on route %q: %w", r.Name, err)
	}
	return uses, nil
}

// ruleName is which rule of which HTTPRoute Envoy Gateway made a route of.
type ruleName struct {
	route types.NamespacedName
	rule  int
}

// ruleOf reads it from the route's name: httproute/NAMESPACE/NAME/rule/NUMBER/….
func ruleOf(name string) (ruleName, bool) {
	parts := strings.Split(name, "/")
	if len(parts) < 5 || parts[0] != "httproute" || parts[3] != "rule" {
		return ruleName{}, false
	}
	n, err := strconv.Atoi(parts[4])
	return ruleName{types.NamespacedName{Namespace: parts[1], Name: parts[2]}, n}, err == nil && n >= 0
}

// cluster is what Envoy Gateway calls the cluster of a whole rule, and backend that of one of its backends.
func (r ruleName) cluster() string {
	return fmt.Sprintf("httproute/%s/%s/rule/%d", r.route.Namespace, r.route.Name, r.rule)
}

func (r ruleName) backend(i int) string { return fmt.Sprintf("%s/backend/%d", r.cluster(), i) }

// shownTo is what is shown to the pickers of a configuration, and whom to believe; secret is what Envoy Gateway calls the
// certificate, NAMESPACE/NAME.
type shownTo struct {
	secret               string
	cert, key, authority []byte
}

// translation is one call about everything that an Envoy is to be told. What it is about is changed in place.
type translation struct {
	source *corev3.ConfigSource // of endpoints
	routes map[types.NamespacedName]*gatewayv1.HTTPRoute
	shown  map[string]*shownTo // by configuration

	clusters map[string]*clusterv3.Cluster
	added    []*clusterv3.Cluster
	secrets  map[string]*tlsv3.Secret
	// policies are the filters of policies that ask pickers; roomy are the route tables whose listeners all hold large bodies.
	policies map[string]bool
	roomy    map[string]bool
	done     map[string]bool // clusters that are pools already
}

// run changes what q has into what Envoys are told.
func (t *translation) run(q *translateRequest) (*translateAnswer, error) {
	t.clusters, t.secrets = make(map[string]*clusterv3.Cluster), make(map[string]*tlsv3.Secret)
	t.policies, t.roomy, t.done = make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, c := range q.Clusters {
		t.clusters[c.Name] = c
	}
	managers, err := managersOf(q.Listeners)
	if err != nil {
		return nil, err
	}
	for _, m := range managers {
		m.policies(t.policies)
		roomy, seen := t.roomy[m.table]
		t.roomy[m.table] = m.buffer >= bufferLarge && (roomy || !seen)
	}
	for _, table := range q.Routes {
		if err := t.table(table); err != nil {
			return nil, err
		}
	}
	for _, m := range managers {
		if err := m.change(); err != nil {
			return nil, err
		}
	}
	a := &translateAnswer{Clusters: append(q.Clusters, t.added...), Secrets: q.Secrets, Listeners: q.Listeners, Routes: q.Routes}
	lacking, err := t.lacking(q)
	a.Secrets = append(a.Secrets, lacking...)
	for _, name := range sortedKeys(t.secrets) {
		a.Secrets = append(a.Secrets, t.secrets[name])
	}
	return a, err
}

// table changes the routes of a table that lead to pools. All others have the filters that ask pickers, too, and these do
// nothing there: a request's filters are chosen by its first route, and a picker of models may send it on to a pool's.
func (t *translation) table(table *routev3.RouteConfiguration) error {
	found := false
	for _, host := range table.VirtualHosts {
		for _, r := range host.Routes {
			uses, err := stampOf(r)
			if err != nil {
				return err
			}
			if len(uses) == 0 {
				continue
			}
			delete(r.Metadata.FilterMetadata, stampKey)
			asked, err := t.route(r, uses, t.roomy[table.Name])
			if err != nil {
				return fmt.Errorf("cannot configure route %q: %w", r.Name, err)
			}
			found = found || asked
		}
	}
	if !found {
		return nil
	}
	if table.TypedPerFilterConfig == nil {
		table.TypedPerFilterConfig = make(map[string]*anypb.Any)
	}
	for _, name := range pickFilters() {
		idle, err := idleFilter()
		if err != nil {
			return err
		}
		table.TypedPerFilterConfig[name] = idle
	}
	return nil
}

// target is where a share of a route's requests goes.
type target struct {
	cluster string
	weight  uint32
	pool    *use                                   // nil for what Envoy Gateway sees to
	entry   *routev3.WeightedCluster_ClusterWeight // what Envoy Gateway made, if anything
}

// route changes a route, and reports whether a picker is to be asked about it.
func (t *translation) route(r *routev3.Route, uses []*use, roomy bool) (asked bool, err error) {
	action, name := r.GetRoute(), ruleName{}
	if action == nil {
		return false, nil // it answers by itself
	}
	name, ok := ruleOf(r.Name)
	if !ok { // a GRPCRoute's: no picker reads what goes there
		r.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 500}}
		return false, nil
	}
	route := t.routes[name.route]
	if route == nil || name.rule >= len(route.Spec.Rules) {
		t.vanish(r, name)
		return false, nil
	}
	targets := t.targets(action, name, &route.Spec.Rules[name.rule], uses)
	if len(targets) == 0 { // of a rule that is another one
		t.vanish(r, name)
		return false, nil
	}
	byPolicy := slices.ContainsFunc(sortedKeys(r.TypedPerFilterConfig), func(filter string) bool { return t.policies[filter] })
	entries := make([]*routev3.WeightedCluster_ClusterWeight, 0, len(targets))
	for _, to := range targets {
		entry := to.entry
		if entry == nil {
			entry = &routev3.WeightedCluster_ClusterWeight{Name: to.cluster, Weight: wrapperspb.UInt32(to.weight)}
		}
		if to.pool != nil {
			if err := t.pool(name, to); err != nil {
				return false, err
			}
			if to.pool.Picker != "" && !byPolicy {
				if err := t.ask(entry, to.pool, roomy); err != nil {
					return false, err
				}
				asked = true
			}
		}
		entries = append(entries, entry)
	}
	lead(r, action, entries)
	temper(action)
	return asked, nil
}

// vanish is for a route whose rule has gone since, which Envoy Gateway is about to notice. What were pools' clusters ask nobody
// for endpoints: as Envoy Gateway made them they would ask it, it may have forgotten them by then, and an Envoy that waits for
// a cluster's endpoints takes no other cluster for 15 seconds.
func (t *translation) vanish(r *routev3.Route, name ruleName) {
	r.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 503}}
	for cluster, c := range t.clusters {
		if cluster != name.cluster() && !strings.HasPrefix(cluster, name.cluster()+"/") {
			continue
		}
		c.ClusterDiscoveryType, c.EdsClusterConfig = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, nil
		c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: cluster}
	}
}

// lead has a route lead to one cluster, or to several by their weights.
func lead(r *routev3.Route, action *routev3.RouteAction, entries []*routev3.WeightedCluster_ClusterWeight) {
	if len(entries) != 1 || len(entries[0].RequestHeadersToAdd)+len(entries[0].ResponseHeadersToAdd)+len(entries[0].RequestHeadersToRemove)+len(entries[0].ResponseHeadersToRemove) > 0 {
		weighted := action.GetWeightedClusters()
		if weighted == nil {
			weighted = new(routev3.WeightedCluster)
		}
		weighted.Clusters = entries
		action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weighted}
		return
	}
	action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: entries[0].Name}
	for filter, config := range entries[0].TypedPerFilterConfig {
		if r.TypedPerFilterConfig == nil {
			r.TypedPerFilterConfig = make(map[string]*anypb.Any)
		}
		r.TypedPerFilterConfig[filter] = config
	}
}

// targets are where a rule's requests go. Envoy Gateway leaves a pool out where a rule has several backends: either all
// share one cluster, which has no endpoint for it, or each has its own, and the pool's gets no weight.
func (t *translation) targets(action *routev3.RouteAction, name ruleName, rule *gatewayv1.HTTPRouteRule, uses []*use) []target {
	var pools []target
	others := uint32(0)
	for i := range rule.BackendRefs {
		ref := &rule.BackendRefs[i]
		weight := uint32(1)
		if ref.Weight != nil {
			weight = uint32(max(*ref.Weight, 0))
		}
		key, isPool := poolOf(&ref.BackendObjectReference, name.route.Namespace)
		if weight == 0 {
			continue
		}
		if !isPool {
			others += weight
			continue
		}
		// One that it didn't send isn't there, or may not be used: it has seen to that.
		if at := slices.IndexFunc(uses, func(u *use) bool { return u.key() == key }); at >= 0 {
			pools = append(pools, target{cluster: name.backend(i), weight: weight, pool: uses[at]})
		}
	}
	var list []target
	if weighted := action.GetWeightedClusters(); weighted != nil {
		for _, entry := range weighted.Clusters {
			if !slices.ContainsFunc(pools, func(p target) bool { return p.cluster == entry.Name }) {
				list = append(list, target{entry: entry})
			}
		}
	} else if others > 0 {
		list = append(list, target{cluster: action.GetCluster(), weight: others})
	}
	if len(list) == 0 && len(pools) == 1 && t.clusters[pools[0].cluster] == nil {
		pools[0].cluster = name.cluster() // the rule's own, which nobody else uses
	}
	return append(list, pools...)
}

// temper takes bounds from a route that fit no model: Envoy's own 15 seconds for a whole answer, and 5 minutes without a
// byte. What someone has set stays. Without retries a list of endpoints would be of no use beyond its first.
func temper(action *routev3.RouteAction) {
	if action.Timeout == nil {
		action.Timeout = unbounded()
	}
	if action.IdleTimeout == nil {
		action.IdleTimeout = idleTimeout()
	}
	if action.RetryPolicy == nil {
		action.RetryPolicy = retries()
	}
}

// pool makes a cluster a pool's: Envoy Gateway's own, with all that policies say of it, and other endpoints.
func (t *translation) pool(name ruleName, to target) error {
	if t.done[to.cluster] {
		return nil
	}
	t.done[to.cluster] = true
	c := t.clusters[to.cluster]
	if c == nil {
		base := t.clusters[name.cluster()]
		if base == nil {
			return fmt.Errorf("cannot find cluster %q: Envoy Gateway's extensionManager has to send clusters", name.cluster())
		}
		c = proto.Clone(base).(*clusterv3.Cluster)
		c.Name = to.cluster
		t.clusters[c.Name], t.added = c, append(t.added, c)
	}
	return poolCluster(c, to.pool, t.source)
}

// ask has the pool's picker asked about requests that go there.
func (t *translation) ask(entry *routev3.WeightedCluster_ClusterWeight, u *use, roomy bool) error {
	cluster := pickerCluster(u.key())
	if t.clusters[cluster] == nil {
		c, secrets, err := askedCluster(u, t.source, t.shown[u.Config])
		if err != nil {
			return err
		}
		t.clusters[cluster], t.added = c, append(t.added, c)
		for _, s := range secrets {
			t.secrets[s.Name] = s
		}
	}
	filter, config, err := pickFor(u, roomy)
	if err != nil {
		return err
	}
	if entry.TypedPerFilterConfig == nil {
		entry.TypedPerFilterConfig = make(map[string]*anypb.Any)
	}
	entry.TypedPerFilterConfig[filter] = config
	return nil
}

// manager is the HTTP side of a listener.
type manager struct {
	filter *listenerv3.Filter
	config *hcmv3.HttpConnectionManager
	table  string
	buffer uint32
}

// managersOf finds those that take their routes from a table, which are all that HTTPRoutes can be for.
func managersOf(listeners []*listenerv3.Listener) ([]*manager, error) {
	var list []*manager
	for _, l := range listeners {
		chains := l.FilterChains
		if l.DefaultFilterChain != nil {
			chains = append(slices.Clone(chains), l.DefaultFilterChain)
		}
		for _, chain := range chains {
			for _, f := range chain.Filters {
				config := new(hcmv3.HttpConnectionManager)
				if !f.GetTypedConfig().MessageIs(config) {
					continue
				}
				if err := f.GetTypedConfig().UnmarshalTo(config); err != nil {
					return nil, fmt.Errorf("cannot read filter %q of listener %q: %w", f.Name, l.Name, err)
				}
				if table := config.GetRds().GetRouteConfigName(); table != "" {
					buffer := uint32(bufferEnvoy)
					if l.PerConnectionBufferLimitBytes != nil {
						buffer = l.PerConnectionBufferLimitBytes.Value
					}
					list = append(list, &manager{filter: f, config: config, table: table, buffer: buffer})
				}
			}
		}
	}
	return list, nil
}

// processorOf is an ext_proc filter's configuration, nil for another filter.
func processorOf(f *hcmv3.HttpFilter) *extprocv3.ExternalProcessor {
	p := new(extprocv3.ExternalProcessor)
	if !f.GetTypedConfig().MessageIs(p) || f.GetTypedConfig().UnmarshalTo(p) != nil {
		return nil
	}
	return p
}

// picks reports whether an ext_proc is a picker's: it may name the endpoint.
func picks(p *extprocv3.ExternalProcessor) bool {
	return p != nil && slices.Contains(p.GetMetadataOptions().GetReceivingNamespaces().GetUntyped(), metadataNamespace)
}

// policies notes the filters by which policies have pickers asked.
func (m *manager) policies(into map[string]bool) {
	for _, f := range m.config.HttpFilters {
		if picks(processorOf(f)) {
			into[f.Name] = true
		}
	}
}

// change lets pickers of policies take as long as they need, and adds the filters that ask the pickers of pools: last,
// behind everything that may deny a request. They are in every listener, whether or not it has routes to pools, since
// changing a listener ends its connections; switched off, they are not even made.
func (m *manager) change() error {
	for _, f := range m.config.HttpFilters {
		p := processorOf(f)
		if !picks(p) {
			continue
		}
		p.GrpcService.Timeout, p.MaxMessageTimeout = nil, longestWait()
		packed, err := anypb.New(p)
		if err != nil {
			return err
		}
		f.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed}
	}
	last := len(m.config.HttpFilters) - 1
	if last < 0 {
		return errors.New("cannot configure a listener without filters")
	}
	var added []*hcmv3.HttpFilter
	for _, name := range pickFilters() {
		f, err := pickFilter(name)
		if err != nil {
			return err
		}
		added = append(added, f)
	}
	m.config.HttpFilters = slices.Insert(m.config.HttpFilters, last, added...)
	packed, err := anypb.New(m.config)
	if err != nil {
		return err
	}
	m.filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
	return nil
}

// sortedKeys are a map's, in order.
func sortedKeys[V any](m map[string]V) []string {
	list := make([]string, 0, len(m))
	for key := range m {
		list = append(list, key)
	}
	slices.SortFunc(list, cmp.Compare)
	return list
}
