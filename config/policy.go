package config

import (
	"fmt"
	"maps"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/route"
)

// Session says how a pool's sessions are told and what their endpoints are worth.
type Session struct {
	// Header and Cookie are names; at least one is set. A request's header wins.
	Header, Cookie string
	// Cost is what leaving a session's endpoint costs, above 0.
	Cost time.Duration
	// TTL is how long a session without requests is remembered, above 0.
	TTL time.Duration
}

// DefaultSession is a session with everything but its names.
func DefaultSession() Session {
	return Session{Cost: v1alpha1.DefaultSessionCost * time.Millisecond, TTL: v1alpha1.DefaultSessionTTL}
}

// token is what names of headers and cookies look like, and nothing.
var token = regexp.MustCompile(v1alpha1.SessionNamePattern)

// CheckSessionName reports why a header or a cookie can't be called that, nil if it can.
func CheckSessionName(name string) error {
	switch {
	case len(name) > v1alpha1.MaxSessionName:
		return fmt.Errorf("is %d characters long, at most %d are allowed", len(name), v1alpha1.MaxSessionName)
	case name == "" || !token.MatchString(name):
		return fmt.Errorf("must be letters, digits, '-' and '_'")
	}
	return nil
}

// validatePolicy checks a GatewayPolicy document on its own.
func validatePolicy(p *v1alpha1.GatewayPolicy) field.ErrorList {
	c := &checks{}
	c.metadata(&p.ObjectMeta)
	path := field.NewPath("spec", "targetRef")
	t := &p.Spec.TargetRef
	oneOf(c, path.Child("group"), t.Group, v1alpha1.InferenceGroup)
	oneOf(c, path.Child("kind"), t.Kind, v1alpha1.InferenceGatewayConfigKind)
	if t.Name == "" {
		c.add(field.Required(path.Child("name"), "the metadata.name of the InferenceGatewayConfig that the policy is for"))
	}
	if s := p.Spec.SessionAffinity; s != nil {
		c.session(field.NewPath("spec", "sessionAffinity"), s)
	}
	if at := field.NewPath("spec", "topology"); p.Spec.Topology != "" {
		oneOf(c, at, p.Spec.Topology, v1alpha1.TopologyFused, v1alpha1.TopologySplit, v1alpha1.TopologyEmbedded)
		if t.SectionName != "" {
			c.add(field.Invalid(at, p.Spec.Topology, v1alpha1.MessageTopologyWhole))
		}
	}
	return c.errs
}

func (c *checks) session(path *field.Path, s *v1alpha1.SessionAffinity) {
	if s.Header == "" && s.Cookie == "" {
		c.add(field.Required(path, v1alpha1.MessageHeaderOrCookie+", such as {header: x-session-id}"))
	}
	for _, x := range []struct{ key, name string }{{"header", s.Header}, {"cookie", s.Cookie}} {
		if err := CheckSessionName(x.name); x.name != "" && err != nil {
			c.add(field.Invalid(path.Child(x.key), x.name, err.Error()))
		}
	}
	within(c, path.Child("costMilliseconds"), s.CostMilliseconds, 1, v1alpha1.MaxSessionCost)
	within(c, path.Child("weight"), s.Weight, 0, v1alpha1.MaxSessionWeight)
	if s.TTL != nil {
		if d, err := time.ParseDuration(*s.TTL); err != nil || d <= 0 || !duration.MatchString(*s.TTL) {
			c.add(field.Invalid(path.Child("ttl"), *s.TTL, "must be a duration above 0 of h, m, s and ms without fractions, such as 10m"))
		}
	}
}

// takePolicy checks a GatewayPolicy document on its own and keeps it.
func (b *builder) takePolicy(d *document) {
	p := decode[v1alpha1.GatewayPolicy](d)
	p.Default()
	d.add(validatePolicy(p)...)
	b.policies = append(b.policies, p)
	b.policyDocs = append(b.policyDocs, d)
}

// pairPolicies checks that every policy has something to be for, and nothing has two of a kind.
func (b *builder) pairPolicies() {
	seen := make(map[string]string)
	for i, p := range b.policies {
		d, t, path := b.policyDocs[i], p.Spec.TargetRef, field.NewPath("spec", "targetRef")
		if b.gateway == nil || t.Name == "" {
			continue
		}
		switch {
		case t.Name != b.gateway.Name:
			d.add(field.Invalid(path.Child("name"), t.Name, fmt.Sprintf("is not the InferenceGatewayConfig here, which is %q", b.gateway.Name)))
			continue
		case t.SectionName != "" && !b.hasScheduler(t.SectionName):
			d.add(field.Invalid(path.Child("sectionName"), t.SectionName, "is the name of no scheduler"))
			continue
		}
		if first, taken := seen[t.SectionName]; taken {
			d.add(field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("%s is for the same: keep one of them", first)))
			continue
		}
		seen[t.SectionName] = d.place()
	}
}

func (b *builder) hasScheduler(name string) bool {
	for i := range b.gateway.Spec.Schedulers {
		if b.gateway.Spec.Schedulers[i].Name == name {
			return true
		}
	}
	return false
}

// policy is what holds for a scheduler: its own, else the gateway's, nil for none.
func (b *builder) policy(scheduler string) *v1alpha1.GatewayPolicy {
	var general *v1alpha1.GatewayPolicy
	for _, p := range b.policies {
		switch p.Spec.TargetRef.SectionName {
		case scheduler:
			return p
		case "":
			general = p
		}
	}
	return general
}

// sessions fills in what the pool's policy says of sessions.
func (b *builder) sessions(p *Pool) {
	policy := b.policy(p.Scheduler)
	if policy == nil || policy.Spec.SessionAffinity == nil {
		return
	}
	s := policy.Spec.SessionAffinity
	ttl, _ := time.ParseDuration(*s.TTL) // validated
	p.Session = &Session{Header: s.Header, Cookie: s.Cookie, Cost: time.Duration(*s.CostMilliseconds) * time.Millisecond, TTL: ttl}
	if p.Weights != nil {
		p.Weights = maps.Clone(p.Weights)
		p.Weights[route.ScorerSessionAffinity] = float64(*s.Weight)
	}
}

// sessionSentence says for people how sessions are told.
func sessionSentence(s *Session) string {
	told := ""
	switch {
	case s.Header != "" && s.Cookie != "":
		told = fmt.Sprintf("by the header %s, or else the cookie %s", s.Header, s.Cookie)
	case s.Header != "":
		told = "by the header " + s.Header
	default:
		told = "by the cookie " + s.Cookie
	}
	return fmt.Sprintf("%s; leaving an endpoint costs %v; remembered for %v", told, s.Cost, s.TTL)
}
