package v1alpha1

// Default sets what a document left out and that has a default, as an API server would. It adds no weights where there
// are none: absent weights mean routing by latency, and a weights block, even an empty one, means routing by weights.
func (c *InferenceGatewayConfig) Default() {
	b := &c.Spec.BBR
	setDefault(&b.Replicas, DefaultReplicas)
	setDefault(&b.MaxRequestBodyBytes, MaxRequestBodyBytes)
	if b.DefaultBackend != nil {
		setDefault(&b.DefaultBackend.Port, DefaultBackendPort)
	}
	if o := c.Spec.Observability; o != nil && o.Metrics != nil {
		setDefault(&o.Metrics.Enabled, true)
	}
	if a := c.Spec.Auth; a != nil && a.JWT != nil {
		for i := range a.JWT.Provider.RequiredClaims {
			if claim := &a.JWT.Provider.RequiredClaims[i]; claim.ValueType == "" {
				claim.ValueType = ClaimString
			}
		}
	}
	for i := range c.Spec.Schedulers {
		c.Spec.Schedulers[i].Default()
	}
}

// Default sets what a scheduler entry left out and that has a default.
func (s *Scheduler) Default() {
	setDefault(&s.TargetPort, DefaultTargetPort)
	setDefault(&s.Replicas, DefaultReplicas)
	if s.AppProtocol == "" {
		s.AppProtocol = AppProtocolHTTP
	}
	if s.Scheduler == "" {
		s.Scheduler = PickerLLMD
	}
	if s.EngineType == "" {
		s.EngineType = EngineTypeVLLM
	}
	if w := s.Weights; w != nil {
		setDefault(&w.Queue, DefaultQueueWeight)
		setDefault(&w.KVCache, DefaultKVCacheWeight)
		setDefault(&w.Prefix, DefaultPrefixWeight)
	}
	if r := s.ConfigMapRef; r != nil && r.Key == "" {
		r.Key = DefaultPickerConfigKey
	}
}

// Default sets what a policy left out and that has a default.
func (p *GatewayPolicy) Default() {
	if t := &p.Spec.TargetRef; t.Group == "" {
		t.Group = InferenceGroup
	}
	if t := &p.Spec.TargetRef; t.Kind == "" {
		t.Kind = InferenceGatewayConfigKind
	}
	if s := p.Spec.SessionAffinity; s != nil {
		setDefault(&s.CostMilliseconds, DefaultSessionCost)
		setDefault(&s.Weight, DefaultSessionWeight)
		setDefault(&s.TTL, DefaultSessionTTLText)
	}
}

// Default sets what a list left out and that has a default.
func (e *Endpoints) Default() {
	e.Spec.KVEvents.setDefaults()
	for i := range e.Spec.Endpoints {
		e.Spec.Endpoints[i].KVEvents.setDefaults()
	}
}

// Default sets what a global gateway left out and that has a default.
func (g *GlobalGateway) Default() {
	for i := range g.Spec.Members {
		setDefault(&g.Spec.Members[i].CostMilliseconds, DefaultMemberCost)
	}
	if r := g.Spec.Ramp; r != nil {
		setDefault(&r.Duration, DefaultRampText)
	}
}

func (k *EndpointKVEvents) setDefaults() {
	if k != nil {
		setDefault(&k.Port, DefaultKVEventsPort)
		setDefault(&k.ReplayPort, DefaultKVReplayPort)
	}
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
