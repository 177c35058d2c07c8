package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
	"github.com/sluice-gateway/sluice/route"
)

// scorers says where a document keeps the weight of each scorer: a row for every one of route.ScorerNames but
// sessionAffinity, whose weight a GatewayPolicy has.
var scorers = []struct {
	name   string
	weight func(*v1alpha1.Weights) **int32
}{
	{route.ScorerQueue, func(w *v1alpha1.Weights) **int32 { return &w.Queue }},
	{route.ScorerKVCache, func(w *v1alpha1.Weights) **int32 { return &w.KVCache }},
	{route.ScorerPrefix, func(w *v1alpha1.Weights) **int32 { return &w.Prefix }},
	{route.ScorerLRU, func(w *v1alpha1.Weights) **int32 { return &w.LRU }},
	{route.ScorerLoRAAffinity, func(w *v1alpha1.Weights) **int32 { return &w.LoRAAffinity }},
	{route.ScorerRunningRequests, func(w *v1alpha1.Weights) **int32 { return &w.RunningRequests }},
	{route.ScorerPredictedLatency, func(w *v1alpha1.Weights) **int32 { return &w.PredictedLatency }},
}

// Parse reads the YAML documents of one gateway: exactly one InferenceGatewayConfig and any number of the other
// kinds, in any order. The name is for messages. An error is always a *Faults, and holds everything that is wrong.
func Parse(docs []byte, name string) (*Config, error) {
	b, err := parse(docs, name, false)
	if err != nil {
		return nil, err
	}
	return b.config, nil
}

// parse has a configuration built of the documents alone. With mayIdle it may list no scheduler at all.
func parse(docs []byte, name string, mayIdle bool) (*builder, error) {
	b := &builder{config: &Config{Source: name}, mayIdle: mayIdle}
	b.docs = read(docs)
	for _, d := range b.docs {
		b.take(d)
	}
	b.pair()
	if b.gateway != nil && len(b.faults()) == 0 {
		b.build()
	}
	if list := b.faults(); len(list) > 0 {
		return nil, &Faults{Source: name, List: list}
	}
	return b, nil
}

// builder is Parse under way.
type builder struct {
	config  *Config
	docs    []*document
	loose   []Fault // faults of the file as a whole
	mayIdle bool    // a list of schedulers that is there may be empty

	gateway    *v1alpha1.InferenceGatewayConfig // with its defaults
	written    *v1alpha1.InferenceGatewayConfig // as it was written
	gatewayDoc *document
	others     []*document // further InferenceGatewayConfigs
	lists      []*v1alpha1.Endpoints
	listDocs   []*document
	policies   []*v1alpha1.GatewayPolicy // with their defaults
	policyDocs []*document
	globalDocs []*document

	rewrites      []*v1alpha2.InferenceModelRewrite
	rewriteDocs   []*document
	objectives    []*v1alpha2.InferenceObjective
	objectiveDocs []*document
	configMaps    []*configMap
	configMapDocs []*document
	adapterMaps   []adapterMap

	pods    *Pods              // beside the documents, nil where there are none to be
	sayings map[string]*saying // what pods say, by their texts
	chosen  map[entry]bool     // entries that some scheduler selected
}

// entry is an address by its place: the list it is in, and where in it.
type entry struct{ list, index int }

func (b *builder) faults() []Fault {
	var list []Fault
	for _, d := range b.docs {
		list = append(list, d.faults...)
	}
	return append(list, b.loose...)
}

// take checks one document on its own.
func (b *builder) take(d *document) {
	if d.tree == nil {
		return
	}
	switch d.kind {
	case v1alpha1.InferenceGatewayConfigKind:
		g := decode[v1alpha1.InferenceGatewayConfig](d)
		written := *decode[v1alpha1.InferenceGatewayConfig](&document{tree: d.tree})
		g.Default()
		d.add(validateConfig(g, b.mayIdle && g.Spec.Schedulers != nil)...)
		if b.gateway != nil {
			b.others = append(b.others, d)
			return
		}
		b.gateway, b.written, b.gatewayDoc = g, &written, d
	case v1alpha1.EndpointsKind:
		e := decode[v1alpha1.Endpoints](d)
		e.Default()
		d.add(validateEndpoints(e)...)
		b.lists = append(b.lists, e)
		b.listDocs = append(b.listDocs, d)
	case v1alpha1.GatewayPolicyKind:
		b.takePolicy(d)
	case v1alpha1.GlobalGatewayKind:
		b.takeGlobal(d)
	case v1alpha2.InferenceModelRewriteKind:
		b.takeRewrite(d)
	case v1alpha2.InferenceObjectiveKind:
		b.takeObjective(d)
	case configMapKind:
		b.takeConfigMap(d)
	}
}

// pair checks what only shows in all documents together.
func (b *builder) pair() {
	for _, d := range b.others {
		d.say("metadata.name: one process runs one InferenceGatewayConfig, and %s is one already: keep each in a file of its own", b.gatewayDoc.place())
	}
	names := map[string]string{}
	for i, d := range b.listDocs {
		b.unique(d, names, b.lists[i].Name)
	}
	twice(b.listDocs, b.lists)
	b.pairPolicies()
	b.pairRewrites()
	b.pairObjectives()
	b.pairConfigMaps()
	if b.gateway == nil && len(b.faults()) == 0 {
		b.loose = append(b.loose, Fault{Text: "no document of kind InferenceGatewayConfig: it says which models there are and where they run"})
	}
}

// build makes the Config of documents without a fault.
func (b *builder) build() {
	g, c := b.gateway, b.config
	c.Name = g.Name
	c.SelectModel = *g.Spec.BBR.Enabled
	c.MaxBodyBytes = *g.Spec.BBR.MaxRequestBodyBytes
	if d := g.Spec.BBR.DefaultBackend; d != nil && c.SelectModel {
		c.Default = &Pool{AppProtocol: HTTP, Endpoints: []Endpoint{{Address: strings.ToLower(d.Name), Port: int(*d.Port)}}}
	}
	c.JWT, c.TLS = jwt(g.Spec.Auth), g.Spec.TLS != nil
	b.notHonoured()
	if len(g.Spec.Schedulers) == 0 {
		b.warn(b.gatewayDoc.ref(), field.NewPath("spec", "schedulers"), "", "is empty, so that %s", b.idle())
	}
	b.chosen = map[entry]bool{}
	for i := range g.Spec.Schedulers {
		c.Pools = append(c.Pools, b.pool(i))
	}
	b.configMapsNotHonoured()
	b.adapters()
	b.buildRewrites()
	b.buildObjectives()
	b.unselected()
	c.warnShared(b.gatewayDoc.ref(), "spec.schedulers")
	c.warnEvents(b.gatewayDoc.ref(), "spec.schedulers")
}

// idle says what becomes of requests where there is no scheduler.
func (b *builder) idle() string {
	if b.config.Default != nil {
		return "everything goes to the default backend"
	}
	return "every request is answered 404"
}

// jwt is what a validated document asks of tokens.
func jwt(a *v1alpha1.Auth) *JWT {
	if a == nil {
		return nil
	}
	p := &a.JWT.Provider
	j := &JWT{Provider: p.Name, Issuer: p.Issuer, JWKSURI: p.RemoteJWKS.URI, Audiences: p.Audiences}
	for _, c := range p.RequiredClaims {
		j.Claims = append(j.Claims, Claim{Name: c.Name, List: c.ValueType == v1alpha1.ClaimStringArray, Values: c.Values})
	}
	return j
}

// at is the path of a scheduler.
func at(i int) *field.Path { return field.NewPath("spec", "schedulers").Index(i) }

func (b *builder) warn(object string, path *field.Path, value, format string, args ...any) {
	b.config.Warnings = append(b.config.Warnings, Notice{Object: object, Path: path.String(), Value: value, Why: fmt.Sprintf(format, args...)})
}

func (b *builder) pool(i int) Pool {
	s := &b.gateway.Spec.Schedulers[i]
	p := Pool{
		Scheduler:   s.Name,
		Model:       s.ModelName,
		Selector:    selectorText(s.ModelSelector),
		AppProtocol: HTTP,
		EngineType:  string(s.EngineType),
		Weights:     weights(s.Weights),
	}
	if r := s.ConfigMapRef; r != nil {
		p.ConfigMap = r.Name
	}
	if s.AppProtocol == v1alpha1.AppProtocolH2C {
		p.AppProtocol = H2C
	}
	if s.RouteTimeout != nil {
		if d, err := time.ParseDuration(*s.RouteTimeout); err == nil {
			p.RouteTimeout = &d
		}
	}
	if p.Weights != nil && !slices.ContainsFunc(slices.Collect(maps.Values(p.Weights)), func(w float64) bool { return w > 0 }) {
		b.warn(b.gatewayDoc.ref(), at(i).Child("weights"), "", "every weight is 0, so endpoints are picked by chance: give one a weight, or remove weights to route by latency")
	}
	b.sessions(&p)
	b.choose(i, &p)
	return p
}

// weights is nil where a document has no weights at all.
func weights(w *v1alpha1.Weights) map[string]float64 {
	if w == nil {
		return nil
	}
	m := make(map[string]float64, len(scorers))
	for _, s := range scorers {
		if v := *s.weight(w); v != nil {
			m[s.name] = float64(*v)
		}
	}
	return m
}

func selectorText(s *metav1.LabelSelector) string {
	if text := metav1.FormatLabelSelector(s); text != "<none>" {
		return text
	}
	return "{}"
}

// choose gives a pool the entries that its selector selects.
func (b *builder) choose(i int, p *Pool) {
	s := &b.gateway.Spec.Schedulers[i]
	selector, err := metav1.LabelSelectorAsSelector(s.ModelSelector)
	if err != nil {
		b.gatewayDoc.add(field.Invalid(at(i).Child("modelSelector"), field.OmitValueType{}, err.Error()))
		return
	}
	drained, has := 0, make(map[string]bool)
	for n, l := range b.lists {
		for j := range l.Spec.Endpoints {
			e := b.endpoint(l, j, &b.written.Spec.Schedulers[i], int(*s.TargetPort))
			if !selector.Matches(labels.Set(e.Labels)) {
				continue
			}
			where := field.NewPath("spec", "endpoints").Index(j)
			if has[e.HostPort()] {
				b.listDocs[n].add(field.Invalid(where.Child("address"), l.Spec.Endpoints[j].Address,
					fmt.Sprintf("must be unique: scheduler %q already has %s, with its targetPort filled in", s.Name, e.HostPort())))
				continue
			}
			if e.TLS != nil && p.AppProtocol == H2C {
				b.warn(b.listDocs[n].ref(), where.Child("tls"), "", "scheduler %q asks for HTTP/2 without TLS, and this endpoint is reached by TLS: it chooses the HTTP version itself", s.Name)
			}
			if e.Drain {
				drained++
			}
			has[e.HostPort()] = true
			p.Endpoints = append(p.Endpoints, e)
			b.chosen[entry{n, j}] = true
		}
	}
	drained += b.choosePods(i, p, selector, has)
	switch {
	case len(p.Endpoints) == 0:
		b.selectsNone(i, p)
	case drained == len(p.Endpoints):
		b.warn(b.gatewayDoc.ref(), at(i).Child("modelSelector"), p.Selector, "selects only endpoints that drain, so requests for %q are answered 503", s.ModelName)
	}
}

// endpoint fills in one entry for a scheduler, of which asWritten has no defaults.
func (b *builder) endpoint(l *v1alpha1.Endpoints, j int, asWritten *v1alpha1.Scheduler, targetPort int) Endpoint {
	item := &l.Spec.Endpoints[j]
	host, port, _ := address(item.Address) // validated
	e := Endpoint{Address: host, Port: port, Drain: item.Drain, Engine: string(item.Engine)}
	if e.Port == 0 {
		e.Port = targetPort
	}
	if e.Engine == "" {
		e.Engine = string(asWritten.EngineType)
	}
	e.Labels = make(map[string]string, len(l.Spec.Labels)+len(item.Labels))
	maps.Copy(e.Labels, l.Spec.Labels)
	maps.Copy(e.Labels, item.Labels)
	if m := item.Metrics; m != nil {
		e.MetricsPath = m.Path
		if m.Port != nil {
			e.MetricsPort = int(*m.Port)
		}
	}
	if k := item.KVEvents; k != nil {
		e.KVEvents = kvEvents(k)
	} else if k := l.Spec.KVEvents; k != nil {
		e.KVEvents = kvEvents(k)
	}
	if item.Ranks != nil {
		e.Ranks = int(*item.Ranks)
	}
	if item.FirstRank != nil {
		e.FirstRank = int(*item.FirstRank)
	}
	if t := item.TLS; t != nil {
		e.TLS = &TLS{CAFile: t.CAFile, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	}
	if k := item.APIKey; k != nil {
		e.APIKey = APIKey{Env: k.Env, File: k.File}
	}
	return e
}

// kvEvents turns what has its defaults into a value. Who publishes nothing gives nothing again.
func kvEvents(k *v1alpha1.EndpointKVEvents) KVEvents {
	if *k.Port == 0 {
		return KVEvents{}
	}
	return KVEvents{Port: int(*k.Port), ReplayPort: int(*k.ReplayPort), Topic: k.Topic, HashSeed: k.HashSeed}
}

// unselected tells of entries that get no request, and of entries that take any certificate.
func (b *builder) unselected() {
	for n, l := range b.lists {
		for j := range l.Spec.Endpoints {
			path, item := field.NewPath("spec", "endpoints").Index(j), &l.Spec.Endpoints[j]
			if !b.chosen[entry{n, j}] {
				b.warn(b.listDocs[n].ref(), path, item.Address, "is selected by no scheduler and gets no request")
			}
			if item.TLS != nil && item.TLS.InsecureSkipVerify {
				b.warn(b.listDocs[n].ref(), path.Child("tls", "insecureSkipVerify"), "true", "takes any certificate, so prompts and keys can be read on the way: use caFile")
			}
		}
		if here, there := b.gateway.Namespace, l.Namespace; here != there && here != "" && there != "" {
			b.warn(b.listDocs[n].ref(), field.NewPath("metadata", "namespace"), there, "differs from the gateway's %q, which would keep them apart in a cluster and doesn't here", here)
		}
	}
}

// warnShared tells of addresses in several pools; of pods once for all that are in the same ones.
func (c *Config) warnShared(object, path string) {
	if len(c.Pools) < 2 {
		return
	}
	pools, pods := map[string][]string{}, map[string]bool{}
	for _, p := range c.Pools {
		for i := range p.Endpoints {
			at := p.Endpoints[i].HostPort()
			pools[at] = append(pools[at], p.Scheduler)
			pods[at] = p.Endpoints[i].Pod != ""
		}
	}
	said := map[string]bool{}
	for hostPort, in := range sorted(pools) {
		if len(in) < 2 {
			continue
		}
		value, verb, words := hostPort, "is", strings.Join(in, " and ")
		if pods[hostPort] {
			if said[words] {
				continue
			}
			said[words], value, verb = true, "pods", "are"
		}
		c.Warnings = append(c.Warnings, Notice{Object: object, Path: path, Value: value,
			Why: fmt.Sprintf("%s in the pools %s, and none of them counts what the others send there", verb, words)})
	}
}
