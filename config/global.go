package config

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// Forms of texts in a GlobalGateway.
var (
	labelName     = regexp.MustCompile(v1alpha1.LabelNamePattern)
	gatewayID     = regexp.MustCompile(v1alpha1.GatewayIDPattern)
	clusterARN    = regexp.MustCompile(v1alpha1.ClusterARNPattern)
	memberAddress = regexp.MustCompile(v1alpha1.MemberPattern)
)

// takeGlobal checks a GlobalGateway document on its own. Nothing here goes by one.
func (b *builder) takeGlobal(d *document) {
	g := decode[v1alpha1.GlobalGateway](d)
	g.Default()
	d.add(validateGlobal(g)...)
	b.globalDocs = append(b.globalDocs, d)
}

// validateGlobal checks a GlobalGateway whose defaults are set.
func validateGlobal(g *v1alpha1.GlobalGateway) field.ErrorList {
	c := &checks{}
	c.metadata(&g.ObjectMeta)
	spec := field.NewPath("spec")
	c.form(spec.Child("gatewayId"), g.Spec.GatewayID, v1alpha1.MaxGatewayID, gatewayID, "must be lower-case letters and digits")
	c.labelName(spec.Child("region"), g.Spec.Region, "")
	c.members(spec.Child("members"), g.Spec.Members)
	if g.Spec.Weights != nil {
		c.globalWeights(spec, &g.Spec)
	}
	if r := g.Spec.Ramp; r != nil && !duration.MatchString(*r.Duration) {
		c.add(field.Invalid(spec.Child("ramp", "duration"), *r.Duration, "must be a duration of h, m, s and ms without fractions, such as 60s"))
	}
	c.limits(spec.Child("limits"), g.Spec.Limits)
	return c.errs
}

// form checks the length and the form of a text; an empty one is another rule's matter.
func (c *checks) form(path *field.Path, s string, most int, form *regexp.Regexp, want string) {
	switch n := utf8.RuneCountInString(s); {
	case n > most:
		c.add(tooLong(path, n, most))
	case s != "" && !form.MatchString(s):
		c.add(field.Invalid(path, s, want))
	}
}

// labelName checks a name that could be a label's value; why it is needed, empty where it isn't.
func (c *checks) labelName(path *field.Path, s, why string) {
	if s == "" && why != "" {
		c.add(field.Required(path, why))
	}
	c.form(path, s, v1alpha1.MaxLabelName, labelName, "must be lower-case letters, digits and '-', and begin and end with a letter or digit")
}

func (c *checks) members(path *field.Path, list []v1alpha1.GlobalMember) {
	if len(list) == 0 {
		c.add(field.Required(path, "at least one gateway that requests can be sent to"))
	}
	c.count(path, len(list), v1alpha1.MaxMembers)
	seen := make(map[[3]string]bool)
	for i := range list {
		m, at := &list[i], path.Index(i)
		c.labelName(at.Child("cluster"), m.Cluster, "a name for the cluster")
		c.labelName(at.Child("namespace"), m.Namespace, "the namespace of the InferenceGatewayConfig")
		switch {
		case m.Name == "":
			c.add(field.Required(at.Child("name"), "the metadata.name of the InferenceGatewayConfig"))
		case len(validation.IsDNS1123Subdomain(m.Name)) > 0:
			c.add(field.Invalid(at.Child("name"), m.Name, "must be at most 253 lower-case letters, digits, '-' and '.', and begin and end with a letter or digit"))
		}
		key := [3]string{m.Cluster, m.Namespace, m.Name}
		if seen[key] {
			c.add(field.Duplicate(at, strings.Join(key[:], "/")))
		}
		seen[key] = true
		c.form(at.Child("clusterArn"), m.ClusterARN, v1alpha1.MaxARN, clusterARN, "must be the ARN of a cluster, such as arn:aws:eks:eu-west-1:111122223333:cluster/inference")
		c.labelName(at.Child("region"), m.Region, "")
		if m.Endpoint == "" {
			c.add(field.Required(at.Child("endpoint"), "where its gateway takes requests, such as https://inference.example.com"))
		}
		c.form(at.Child("endpoint"), m.Endpoint, v1alpha1.MaxURL, memberAddress, "must be http:// or https://, a host, and a port where it isn't the usual one")
		within(c, at.Child("costMilliseconds"), m.CostMilliseconds, 0, v1alpha1.MaxSessionCost)
	}
}

// globalWeights adds in the order in which the rule of the definition does, so that both come to the same sum.
func (c *checks) globalWeights(spec *field.Path, s *v1alpha1.GlobalGatewaySpec) {
	path, sum, whole := spec.Child("weights"), 0.0, true
	for _, x := range []struct {
		name   string
		weight *float64
	}{{"KVHeadroom", s.Weights.KVHeadroom}, {"QueueDepth", s.Weights.QueueDepth}, {"RegionProximity", s.Weights.RegionProximity}, {"ErrorRate", s.Weights.ErrorRate}} {
		switch {
		case x.weight == nil:
			c.add(field.Required(path.Child(x.name), "all four weights or none: 0 switches a signal off"))
			whole = false
			continue
		case !(*x.weight >= 0 && *x.weight <= 1):
			c.add(field.Invalid(path.Child(x.name), *x.weight, "must be from 0 to 1"))
		}
		sum += *x.weight
	}
	if whole && !(sum >= 1-v1alpha1.WeightTolerance && sum <= 1+v1alpha1.WeightTolerance) {
		c.add(field.Invalid(path, fmt.Sprintf("%.6g", sum), v1alpha1.MessageWeightsSum))
	}
	if p := s.Weights.RegionProximity; p == nil || *p == 0 {
		return
	}
	for i := range s.Members {
		if m := &s.Members[i]; m.Region == "" && m.ClusterARN == "" {
			c.add(field.Required(spec.Child("members"), v1alpha1.MessageRegions))
			return
		}
	}
}

func (c *checks) limits(path *field.Path, list []v1alpha1.GlobalLimit) {
	c.count(path, len(list), v1alpha1.MaxLimits)
	seen := make(map[string]bool)
	for i := range list {
		l, at := &list[i], path.Index(i)
		c.labelName(at.Child("name"), l.Name, "a name for the limit")
		if seen[l.Name] {
			c.add(field.Duplicate(at, l.Name))
		}
		seen[l.Name] = true
		if n := utf8.RuneCountInString(l.ModelName); n > v1alpha1.MaxModelName {
			c.add(tooLong(at.Child("modelName"), n, v1alpha1.MaxModelName))
		}
		if l.RequestsPerMinute == nil && l.TokensPerMinute == nil {
			c.add(field.Required(at, v1alpha1.MessageLimit))
		}
		within(c, at.Child("requestsPerMinute"), l.RequestsPerMinute, 1, v1alpha1.MaxPerMinute)
		within(c, at.Child("tokensPerMinute"), l.TokensPerMinute, 1, v1alpha1.MaxPerMinute)
	}
}
