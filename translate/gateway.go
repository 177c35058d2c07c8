package translate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// Headers by which the picker and Envoy speak.
const (
	headerBaseModel   = "x-gateway-base-model-name"
	headerDestination = "x-gateway-destination-endpoint"
)

// Groups and kinds that are referred to.
const (
	gatewayGroup   = "gateway.networking.k8s.io"
	gatewayVersion = gatewayGroup + "/v1"
	poolGroup      = "inference.networking.k8s.io"
	certManager    = "cert-manager.io/v1"

	kindCertificate = "Certificate." + certManager
)

// Ports of listeners.
const (
	portHTTP  = 80
	portHTTPS = 443
)

// noMatch is the reference's sentence, in the form of the API's errors. The picker says it; this is for a request that the
// picker let go on and no route is for.
const noMatch = `{"error":{"message":"no matching model: set the model in the request body or the x-gateway-model-name header","type":"invalid_request_error","param":"model","code":"model_not_found"}}`

// noScheduler is what the picker says, too, where no scheduler is left to name a model for.
const noScheduler = `{"error":{"message":"no matching model: none of this gateway's schedulers is at work; kubectl sluice doctor says why","type":"invalid_request_error","param":"model","code":"model_not_found"}}`

// gateway plans the Gateway and the Envoy behind it. It is in the system namespace, where its name is the configuration's.
func (b *builder) gateway() {
	name, ns := b.config.Name, b.s.SystemNamespace
	listener := gatewayv1.Listener{Name: "http", Port: portHTTP, Protocol: gatewayv1.HTTPProtocolType, AllowedRoutes: b.allowed()}
	if t := b.config.Spec.TLS; t != nil {
		listener.Name, listener.Port = "https", portHTTPS
		if t.ACMArn == nil || *t.ACMArn == "" {
			listener.Protocol = gatewayv1.HTTPSProtocolType
			listener.TLS = &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{{Name: gatewayv1.ObjectName(secretOf(name))}}}
			b.clientCertificate()
		}
	}
	g := &gatewayv1.Gateway{ObjectMeta: b.meta(ns, name, ""), Spec: gatewayv1.GatewaySpec{
		GatewayClassName: gatewayv1.ObjectName(b.s.GatewayClass),
		Listeners:        []gatewayv1.Listener{listener},
		Infrastructure: &gatewayv1.GatewayInfrastructure{ParametersRef: &gatewayv1.LocalParametersReference{
			Group: envoyGatewayGroup, Kind: "EnvoyProxy", Name: name}},
	}}
	b.envoy()
	b.add(gatewayVersion, "Gateway", g)
}

// allowed lets routes of the configuration's namespace attach, and nobody else's.
func (b *builder) allowed() *gatewayv1.AllowedRoutes {
	from := gatewayv1.NamespacesFromSelector
	return &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &from,
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": b.config.Namespace}}}}
}

// clientCertificate asks cert-manager for what clients are shown.
func (b *builder) clientCertificate() {
	name, ns, host := b.config.Name, b.s.SystemNamespace, label(b.config.Name)+"."+b.s.EnvoyNamespace+".svc"
	names := []any{host, host + ".cluster.local"}
	if b.ctx.knows(kindCertificate) && b.s.Issuer != "" {
		b.addTree(certManager, "Certificate", b.meta(ns, secretOf(name), ""), map[string]any{
			"secretName": secretOf(name), "dnsNames": names,
			"issuerRef": map[string]any{"group": "cert-manager.io", "kind": "ClusterIssuer", "name": b.s.Issuer}})
	}
	b.plan.Status.TLS = &v1alpha1.TLSStatus{DNSNames: []string{names[0].(string), names[1].(string)}, IssuedAt: b.ctx.Issued}
}

// envoy says how Envoy runs: who reaches it, what it shows pickers, and that it lets requests end.
func (b *builder) envoy() {
	p := &envoyProxy{ObjectMeta: b.meta(b.s.SystemNamespace, b.config.Name, "")}
	spec := &p.Spec
	spec.Provider.Type = "Kubernetes"
	k := &spec.Provider.Kubernetes
	k.EnvoyDeployment.Replicas = b.s.EnvoyReplicas
	k.EnvoyDeployment.Container.Image = b.s.EnvoyImage
	k.EnvoyDeployment.Pod.TopologySpreadConstraints = spread(b.envoys(), false)
	k.EnvoyDeployment.Pod.ImagePullSecrets = b.pullSecrets()
	k.EnvoyService = envoyService{Name: label(b.config.Name), Type: b.s.ServiceType, Annotations: maps.Clone(b.s.ServiceAnnotations)}
	if t := b.config.Spec.TLS; t != nil && t.ACMArn != nil && *t.ACMArn != "" {
		if k.EnvoyService.Annotations == nil {
			k.EnvoyService.Annotations = make(map[string]string)
		}
		// A certificate of ACM can't be taken out of it: the load balancer in front ends TLS with it.
		k.EnvoyService.Annotations["service.beta.kubernetes.io/aws-load-balancer-ssl-cert"] = *t.ACMArn
		k.EnvoyService.Annotations["service.beta.kubernetes.io/aws-load-balancer-ssl-ports"] = strconv.Itoa(portHTTPS)
		b.plan.Status.TLS = &v1alpha1.TLSStatus{ACMArn: *t.ACMArn}
	}
	if b.s.EnvoyReplicas > 1 {
		k.EnvoyPDB = &envoyPDB{MaxUnavailable: 1}
	}
	spec.Shutdown = envoyShutdown{DrainTimeout: fmt.Sprintf("%ds", b.drain()), MinDrainDuration: fmt.Sprintf("%ds", drainDelay)}
	// Claims are checked before the picker is asked, or it would answer, read and count what is then denied. By itself Envoy
	// Gateway checks them last.
	spec.FilterOrder = []filterPosition{{Name: "envoy.filters.http.rbac", Before: "envoy.filters.http.ext_proc"}}
	secret := secretOf(b.config.Name + "-envoy")
	spec.BackendTLS.ClientCertificateRef.Name = gatewayv1.ObjectName(secret)
	b.plan.Certificates = append(b.plan.Certificates, Certificate{Namespace: b.s.SystemNamespace, Secret: secret})
	b.add(envoyGatewayVersion, "EnvoyProxy", p)
}

// routes plans who gets which request. No filter of a route runs before the route matches, so that a route for
// everything comes first; there the picker names the model, and the route is looked for anew. Nothing but the picker can
// set the header that the others match.
func (b *builder) routes() {
	ns := b.config.Namespace
	for _, s := range b.served() {
		rule := gatewayv1.HTTPRouteRule{BackendRefs: []gatewayv1.HTTPBackendRef{poolRef(s.Name)}}
		if b.selects() {
			exact := gatewayv1.HeaderMatchExact
			rule.Matches = []gatewayv1.HTTPRouteMatch{{Path: under("/"), Headers: []gatewayv1.HTTPHeaderMatch{{Type: &exact, Name: headerBaseModel, Value: s.ModelName}}}}
		} else {
			rule.Matches = []gatewayv1.HTTPRouteMatch{{Path: under("/")}}
		}
		if s.RouteTimeout != nil {
			d := gatewayv1.Duration(*s.RouteTimeout)
			rule.Timeouts = &gatewayv1.HTTPRouteTimeouts{Request: &d}
		}
		b.route(s.Name, s.Name, rule)
	}
	health := gatewayv1.HTTPRouteRule{Filters: b.unmatched()}
	for _, path := range []string{"/healthz", "/readyz"} {
		exact := gatewayv1.PathMatchExact
		health.Matches = append(health.Matches, gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{Type: &exact, Value: &path}})
	}
	b.route(healthOf(b.config.Name), "", health)
	if b.catches() {
		rule := gatewayv1.HTTPRouteRule{Matches: []gatewayv1.HTTPRouteMatch{{Path: under("/")}}}
		if d := b.backend; d != nil {
			rule.BackendRefs = []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
				Name: gatewayv1.ObjectName(d.Name), Port: d.Port}}}}
		} else {
			rule.Filters = b.unmatched()
		}
		b.route(selectOf(b.config.Name), "", rule)
	}
	f := &httpRouteFilter{ObjectMeta: b.meta(ns, unmatchedOf(b.config.Name), "")}
	f.Spec.DirectResponse = directResponse{StatusCode: 404, ContentType: "application/json", Body: directBody{Type: "Inline", Inline: b.unmatchedBody()}}
	b.add(envoyGatewayVersion, "HTTPRouteFilter", f)
}

// unmatchedBody says why there is no answer: naming a model helps only where some scheduler is at work.
func (b *builder) unmatchedBody() string {
	if b.idle() {
		return noScheduler
	}
	return noMatch
}

// unmatched answers what nobody has answered before.
func (b *builder) unmatched() []gatewayv1.HTTPRouteFilter {
	return []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterExtensionRef, ExtensionRef: &gatewayv1.LocalObjectReference{
		Group: envoyGatewayGroup, Kind: "HTTPRouteFilter", Name: gatewayv1.ObjectName(unmatchedOf(b.config.Name))}}}
}

func (b *builder) route(name, scheduler string, rule gatewayv1.HTTPRouteRule) {
	group, kind, ns := gatewayv1.Group(gatewayGroup), gatewayv1.Kind("Gateway"), gatewayv1.Namespace(b.s.SystemNamespace)
	b.add(gatewayVersion, "HTTPRoute", &gatewayv1.HTTPRoute{ObjectMeta: b.meta(b.config.Namespace, name, scheduler), Spec: gatewayv1.HTTPRouteSpec{
		CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Group: &group, Kind: &kind, Namespace: &ns, Name: gatewayv1.ObjectName(b.config.Name)}}},
		Rules:           []gatewayv1.HTTPRouteRule{rule},
	}})
}

func under(path string) *gatewayv1.HTTPPathMatch {
	prefix := gatewayv1.PathMatchPathPrefix
	return &gatewayv1.HTTPPathMatch{Type: &prefix, Value: &path}
}

func poolRef(name string) gatewayv1.HTTPBackendRef {
	group, kind := gatewayv1.Group(poolGroup), gatewayv1.Kind("InferencePool")
	return gatewayv1.HTTPBackendRef{BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
		Group: &group, Kind: &kind, Name: gatewayv1.ObjectName(name)}}}
}

// pools plans an InferencePool for each scheduler, so that any route may send to it.
func (b *builder) pools() {
	for _, s := range b.served() {
		m := b.meta(b.config.Namespace, s.Name, s.Name)
		labels, whole := poolSelector(s.ModelSelector)
		if !whole {
			m.Annotations[AnnotationSelector] = metav1.FormatLabelSelector(s.ModelSelector)
			b.say(s.Name, "an InferencePool's selector has labels alone: the one in modelSelector is in its annotation %s, which this gateway goes by, and other users of the pool find no endpoint: write modelSelector with matchLabels for them", AnnotationSelector)
		}
		if addresses := b.addresses(s); addresses != "" {
			m.Annotations[AnnotationAddresses] = addresses
		}
		p := &poolv1.InferencePool{ObjectMeta: m, Spec: poolv1.InferencePoolSpec{
			Selector:    poolv1.LabelSelector{MatchLabels: labels},
			TargetPorts: []poolv1.Port{{Number: poolv1.PortNumber(*s.TargetPort)}},
			EndpointPickerRef: &poolv1.EndpointPickerRef{Kind: "Service", Name: poolv1.ObjectName(schedulerOf(s.Name)),
				Port: &poolv1.Port{Number: portPick}, FailureMode: poolv1.EndpointPickerFailClose},
		}}
		if s.AppProtocol != v1alpha1.AppProtocolHTTP {
			p.Spec.AppProtocol = poolv1.AppProtocol(s.AppProtocol) // older definitions don't have the field, and mean http
		}
		b.add(poolGroup+"/v1", "InferencePool", p)
	}
}

// poolSelector is a selector as an InferencePool has it: labels alone, at least one. What it can't express narrows it to
// nothing rather than widening it: a pool with another model's endpoints would send requests there.
func poolSelector(s *metav1.LabelSelector) (labels map[poolv1.LabelKey]poolv1.LabelValue, whole bool) {
	labels = make(map[poolv1.LabelKey]poolv1.LabelValue)
	whole = true
	for key, value := range s.MatchLabels {
		labels[poolv1.LabelKey(key)] = poolv1.LabelValue(value)
	}
	for _, e := range s.MatchExpressions {
		key := poolv1.LabelKey(e.Key)
		if _, there := labels[key]; e.Operator == metav1.LabelSelectorOpIn && len(e.Values) == 1 && !there {
			labels[key] = poolv1.LabelValue(e.Values[0])
			continue
		}
		whole = false
	}
	if !whole || len(labels) == 0 {
		whole = false
		labels[LabelNobody] = "true"
	}
	return labels, whole
}

// asking plans which picker Envoy asks, of which routes. Behind a body-based router each scheduler's own is asked by its pool's
// endpointPickerRef: a policy's filter isn't made for requests that come to a route by way of another.
func (b *builder) asking() {
	ns := b.config.Namespace
	if b.topology == v1alpha1.TopologyFused || !b.selects() {
		service, name := pickerOf(b.config.Name), selectOf(b.config.Name)
		targets := []string{healthOf(b.config.Name)}
		if b.idle() && b.topology == v1alpha1.TopologySplit {
			return // there is no picker
		}
		if b.catches() {
			targets = append(targets, name)
		}
		for _, s := range b.served() {
			targets = append(targets, s.Name)
			if !b.selects() {
				name = s.Name
			}
			if b.topology == v1alpha1.TopologySplit {
				service = schedulerOf(s.Name)
			}
		}
		b.ask(name, targets, serviceRef{Kind: "Service", Name: service, Port: portPick})
		return
	}
	router := serviceRef{Kind: "Service", Name: routerOf(b.config.Name), Namespace: b.s.SystemNamespace, Port: portPick}
	b.ask(selectOf(b.config.Name), []string{healthOf(b.config.Name), selectOf(b.config.Name)}, router)
	if ns != b.s.SystemNamespace {
		grant := &gatewayv1beta1.ReferenceGrant{ObjectMeta: b.meta(b.s.SystemNamespace, routerOf(b.config.Name), "")}
		name := gatewayv1.ObjectName(router.Name)
		grant.Spec.From = []gatewayv1beta1.ReferenceGrantFrom{{Group: envoyGatewayGroup, Kind: "EnvoyExtensionPolicy", Namespace: gatewayv1.Namespace(ns)}}
		grant.Spec.To = []gatewayv1beta1.ReferenceGrantTo{{Kind: "Service", Name: &name}}
		b.add(gatewayGroup+"/v1beta1", "ReferenceGrant", grant)
	}
}

// ask has Envoy hold a body and ask a picker about it. It is asked about the answer's headers, too, and not shown its body:
// so the stream ends with the request.
func (b *builder) ask(name string, routes []string, to serviceRef) {
	p := &envoyExtensionPolicy{ObjectMeta: b.meta(b.config.Namespace, name, "")}
	slices.Sort(routes)
	for _, r := range routes {
		if b.others("HTTPRoute", b.config.Namespace, r) {
			continue
		}
		p.Spec.TargetRefs = append(p.Spec.TargetRefs, policyTarget{gatewayGroup, "HTTPRoute", r})
	}
	p.Spec.ExtProc = []extProc{{
		BackendRefs: []serviceRef{to}, MessageTimeout: "5s", StatusOnError: 503,
		ProcessingMode: processingMode{Request: bodyMode{Body: "Buffered"}, Response: bodyMode{Attributes: []string{"response.code_details"}}, AllowModeOverride: true},
		Metadata:       extMetadata{AccessibleNamespaces: []string{"envoy.lb", "envoy.lb.subset_hint"}, WritableNamespaces: []string{"envoy.lb"}},
	}}
	b.add(envoyGatewayVersion, "EnvoyExtensionPolicy", p)
}

// forClients are the headers that only a gateway may send. What selects the model stays: RE2 can't look ahead, so that
// the expressions leave its name at each letter.
func forClients() headerFilter {
	f := headerFilter{Remove: []string{"x-data-parallel-host-port", "x-data-parallel-rank", "x-encoder-hosts-ports", "x-kv-cache-source-host-port", "x-prefiller-host-port"}}
	for _, prefix := range []string{"x-envoy-", "x-llm-d-", "x-slo-"} {
		f.RemoveOnMatch = append(f.RemoveOnMatch, stringMatch{"Prefix", prefix})
	}
	for _, regex := range []string{
		`x-gateway-([^m].*|m([^o].*|o([^d].*|d([^e].*|e([^l].*|l([^-].*)?)?)?)?)?)?`,
		`x-gateway-model-([^n].*|n([^a].*|a([^m].*|m([^e].*)?)?)?)?`,
		`x-gateway-model-name.+`,
	} {
		f.RemoveOnMatch = append(f.RemoveOnMatch, stringMatch{"RegularExpression", regex})
	}
	return f
}

// traffic plans what holds on both sides of Envoy: bodies up to the limit, no bound on whole requests but what a scheduler
// asks for, and each retry at the next endpoint of the picker's list.
func (b *builder) traffic() {
	ns, target := b.s.SystemNamespace, []policyTarget{{gatewayGroup, "Gateway", b.config.Name}}
	c := &clientTrafficPolicy{ObjectMeta: b.meta(ns, b.config.Name, "")}
	c.Spec.TargetRefs = target
	c.Spec.Connection.BufferLimit = strconv.FormatInt(*b.config.Spec.BBR.MaxRequestBodyBytes, 10)
	c.Spec.Headers = clientHeaders{RequestID: "PreserveOrGenerate", WithUnderscoresAction: "Allow", EarlyRequestHeaders: forClients()}
	c.Spec.Timeout.HTTP = clientHTTPTimeout{RequestReceivedTimeout: "0s", RequestHeadersReceivedTimeout: "10s", IdleTimeout: "2m", StreamIdleTimeout: "10m"}
	c.Spec.HTTP2 = clientHTTP2{InitialStreamWindowSize: "1Mi", InitialConnectionWindowSize: "16Mi", MaxConcurrentStreams: 1000}
	b.add(envoyGatewayVersion, "ClientTrafficPolicy", c)

	p := &backendTrafficPolicy{ObjectMeta: b.meta(ns, b.config.Name, "")}
	p.Spec.TargetRefs = target
	p.Spec.LoadBalancer = loadBalancer{Type: "LeastRequest", EndpointOverride: endpointOverride{ExtractFrom: []extractFrom{{Header: headerDestination}}}}
	p.Spec.Retry = retry{NumRetries: 4, RetryOn: retryOn{
		Triggers: []string{"connect-failure", "refused-stream", "reset", "retriable-status-codes"}, HTTPStatusCodes: []int{429, 502, 503, 504}},
		PerRetry: perRetry{BackOff: backOff{BaseInterval: "25ms", MaxInterval: "250ms"}}}
	// Only endpoints that nobody named are ejected by this: the picker ejects the others.
	p.Spec.HealthCheck.Passive = passiveCheck{Interval: "1s", BaseEjectionTime: "5s", ConsecutiveGatewayErrors: 2, MaxEjectionPercent: 50}
	p.Spec.CircuitBreaker = map[string]int64{"maxConnections": unlimited, "maxPendingRequests": unlimited, "maxParallelRequests": unlimited, "maxParallelRetries": unlimited}
	p.Spec.Timeout = backendTimeout{HTTP: backendHTTPTimeout{RequestTimeout: "0s", StreamIdleTimeout: "10m"}, TCP: backendTCPTimeout{ConnectTimeout: "2s"}}
	b.add(envoyGatewayVersion, "BackendTrafficPolicy", p)
}

// unlimited is Envoy's largest limit. Its own default of 1024 requests a pool is less than a fleet has.
const unlimited = 1<<32 - 1

// security plans who is let in. The policy is the Gateway's, so that a route which someone adds is closed, too; only the
// route of health has its own.
func (b *builder) security() {
	a := b.config.Spec.Auth
	if a == nil || b.topology == v1alpha1.TopologyEmbedded {
		return
	}
	j := a.JWT.Provider
	p := &securityPolicy{ObjectMeta: b.meta(b.s.SystemNamespace, b.config.Name, "")}
	p.Spec.TargetRefs = []policyTarget{{gatewayGroup, "Gateway", b.config.Name}}
	p.Spec.JWT = &jwt{Providers: []jwtProvider{{Name: j.Name, Issuer: j.Issuer, Audiences: j.Audiences, RemoteJWKS: remoteJWKS{URI: j.RemoteJWKS.URI}}}}
	if len(j.RequiredClaims) > 0 {
		rule := authorizationRule{Name: "claims", Action: "Allow", Principal: principal{JWT: jwtPrincipal{Provider: j.Name}}}
		for _, c := range j.RequiredClaims {
			rule.Principal.JWT.Claims = append(rule.Principal.JWT.Claims, jwtClaim{c.Name, string(c.ValueType), c.Values})
		}
		p.Spec.Authorization = &authorization{DefaultAction: "Deny", Rules: []authorizationRule{rule}}
	}
	b.add(envoyGatewayVersion, "SecurityPolicy", p)
	if b.others("HTTPRoute", b.config.Namespace, healthOf(b.config.Name)) {
		return // it would open someone else's route
	}
	open := &securityPolicy{ObjectMeta: b.meta(b.config.Namespace, healthOf(b.config.Name), "")}
	open.Spec.TargetRefs = []policyTarget{{gatewayGroup, "HTTPRoute", healthOf(b.config.Name)}}
	open.Spec.Authorization = &authorization{DefaultAction: "Allow"}
	b.add(envoyGatewayVersion, "SecurityPolicy", open)
}

// say notes what a scheduler asks for and can't have.
func (b *builder) say(scheduler, format string, args ...any) {
	b.notHonoured = append(b.notHonoured, fmt.Sprintf("scheduler %q: ", scheduler)+fmt.Sprintf(format, args...))
}
