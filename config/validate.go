package config

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// checks collects the faults of one document's fields. Each method looks at one value; what none of them says is right.
type checks struct{ errs field.ErrorList }

func (c *checks) add(e *field.Error) { c.errs = append(c.errs, e) }

// within checks an integer against its bounds; a nil one is another rule's matter.
func within[T int32 | int64](c *checks, path *field.Path, v *T, low, high T) {
	switch {
	case v == nil:
	case *v < low && high == 0:
		c.add(field.Invalid(path, *v, fmt.Sprintf("must be at least %d", low)))
	case high != 0 && (*v < low || *v > high):
		c.add(field.Invalid(path, *v, fmt.Sprintf("must be from %d to %d", low, high)))
	}
}

// text checks a required string's length in characters.
func (c *checks) text(path *field.Path, s string, most int, why string) {
	switch n := utf8.RuneCountInString(s); {
	case n == 0:
		c.add(field.Required(path, why))
	case n > most:
		c.add(tooLong(path, n, most))
	}
}

// tooLong leaves the value out: it is long.
func tooLong(path *field.Path, n, most int) *field.Error {
	return field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("is %d characters long, at most %d are allowed", n, most))
}

// count checks the length of a list.
func (c *checks) count(path *field.Path, n, most int) {
	if n > most {
		c.add(field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("has %d entries, at most %d are allowed", n, most)))
	}
}

// oneOf checks a word against those that are known; empty is the default's matter.
func oneOf[T ~string](c *checks, path *field.Path, v T, known ...T) {
	if v == "" {
		return
	}
	words := make([]string, len(known))
	for i, k := range known {
		if v == k {
			return
		}
		words[i] = string(k)
	}
	c.add(field.Invalid(path, string(v), "must be "+either(words)))
}

// either joins words as in a sentence.
func either(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// metadata checks the name, of which the names of other objects are made.
func (c *checks) metadata(m *metav1.ObjectMeta) {
	path := field.NewPath("metadata", "name")
	switch {
	case m.Name == "":
		c.add(field.Required(path, "a document needs a name"))
	case len(validation.IsDNS1123Subdomain(m.Name)) > 0:
		c.add(field.Invalid(path, m.Name, "must be at most 253 lower-case letters, digits, '-' and '.', and begin and end with a letter or digit"))
	}
}

// validateConfig checks an InferenceGatewayConfig whose defaults are set. An idle one may have no schedulers.
func validateConfig(g *v1alpha1.InferenceGatewayConfig, idle bool) field.ErrorList {
	c := &checks{}
	c.metadata(&g.ObjectMeta)
	spec := field.NewPath("spec")
	c.bbr(spec.Child("bbr"), &g.Spec)
	if g.Spec.Auth != nil {
		c.auth(spec.Child("auth"), g.Spec.Auth)
	}
	if p := g.Spec.PodDefaults; p != nil {
		c.env(spec.Child("podDefaults"), p.Env)
		c.labels(spec.Child("podDefaults", "labels"), p.Labels)
	}
	if len(g.Spec.Schedulers) > 0 || !idle {
		c.schedulers(spec.Child("schedulers"), g.Spec.Schedulers)
	}
	return c.errs
}

func (c *checks) bbr(path *field.Path, s *v1alpha1.InferenceGatewayConfigSpec) {
	b := &s.BBR
	switch {
	case b.Enabled == nil:
		c.add(field.Required(path.Child("enabled"), "must be true or false: whether the model in a request's body chooses the scheduler"))
	case !*b.Enabled && len(s.Schedulers) > 1:
		c.add(field.Invalid(path.Child("enabled"), false, v1alpha1.MessageBBRRequired))
	}
	within(c, path.Child("replicas"), b.Replicas, 1, 0)
	within(c, path.Child("maxRequestBodyBytes"), b.MaxRequestBodyBytes, 1, v1alpha1.MaxRequestBodyBytes)
	if d := b.DefaultBackend; d != nil {
		at := path.Child("defaultBackend")
		switch {
		case d.Name == "":
			c.add(field.Required(at.Child("name"), "the name of a service to send to what matches no scheduler"))
		case len(validation.IsDNS1123Subdomain(d.Name)) > 0:
			c.add(field.Invalid(at.Child("name"), d.Name, "must be a service name: at most 253 lower-case letters, digits, '-' and '.'"))
		}
		within(c, at.Child("port"), d.Port, 1, 65535)
	}
}

func (c *checks) auth(path *field.Path, a *v1alpha1.Auth) {
	path = path.Child("jwt")
	if a.JWT == nil {
		c.add(field.Required(path, "auth without jwt checks nothing: set jwt or remove auth"))
		return
	}
	p := &a.JWT.Provider
	path = path.Child("provider")
	if p.Name == "" {
		c.add(field.Required(path.Child("name"), "a name for the token provider"))
	}
	c.https(path.Child("issuer"), p.Issuer)
	c.https(path.Child("remoteJWKS", "uri"), p.RemoteJWKS.URI)
	if len(p.Audiences) == 0 && len(p.RequiredClaims) == 0 {
		c.add(field.Required(path, v1alpha1.MessageAudiencesOrClaims))
	}
	c.count(path.Child("audiences"), len(p.Audiences), v1alpha1.MaxAudiences)
	for i, s := range p.Audiences {
		if s == "" {
			c.add(field.Required(path.Child("audiences").Index(i), "an audience must not be empty"))
		}
	}
	c.count(path.Child("requiredClaims"), len(p.RequiredClaims), v1alpha1.MaxRequiredClaims)
	for i := range p.RequiredClaims {
		c.claim(path.Child("requiredClaims").Index(i), &p.RequiredClaims[i])
	}
}

func (c *checks) claim(path *field.Path, r *v1alpha1.RequiredClaim) {
	if r.Name == "" {
		c.add(field.Required(path.Child("name"), "the name of the claim"))
	}
	oneOf(c, path.Child("valueType"), r.ValueType, v1alpha1.ClaimString, v1alpha1.ClaimStringArray)
	at := path.Child("values")
	if len(r.Values) == 0 {
		c.add(field.Required(at, "at least one value that the claim may have"))
	}
	c.count(at, len(r.Values), v1alpha1.MaxClaimValues)
	for i, v := range r.Values {
		c.text(at.Index(i), v, v1alpha1.MaxClaimValue, "a claim's value must not be empty")
	}
}

var https = regexp.MustCompile(v1alpha1.HTTPSPattern)

func (c *checks) https(path *field.Path, s string) {
	if s == "" {
		c.add(field.Required(path, "an https address"))
		return
	}
	if !https.MatchString(s) {
		c.add(field.Invalid(path, s, "must be an https address, such as https://login.example.com/"))
	}
}

func (c *checks) env(path *field.Path, env []corev1.EnvVar) {
	for i := range env {
		if env[i].Name == "" {
			c.add(field.Required(path.Child("env").Index(i).Child("name"), "the name of the variable"))
		}
	}
}

func (c *checks) schedulers(path *field.Path, list []v1alpha1.Scheduler) {
	if len(list) == 0 {
		c.add(field.Required(path, "at least one scheduler: without one there is nowhere to send a request"))
	}
	c.count(path, len(list), v1alpha1.MaxSchedulers)
	names, models := map[string]int{}, map[string]int{}
	for i := range list {
		s := &list[i]
		at := path.Index(i)
		c.scheduler(at, s)
		if first, taken := names[s.Name]; taken && s.Name != "" {
			c.add(field.Invalid(at.Child("name"), s.Name, fmt.Sprintf("must be unique: %s has the same name", path.Index(first))))
		} else {
			names[s.Name] = i
		}
		if first, taken := models[s.ModelName]; taken && s.ModelName != "" {
			c.add(field.Invalid(at.Child("modelName"), s.ModelName, fmt.Sprintf("%s: %s has the same", v1alpha1.MessageModelNameUnique, path.Index(first))))
		} else {
			models[s.ModelName] = i
		}
	}
}

func (c *checks) scheduler(path *field.Path, s *v1alpha1.Scheduler) {
	switch {
	case s.Name == "":
		c.add(field.Required(path.Child("name"), "a name for the pool"))
	case len(validation.IsDNS1123Label(s.Name)) > 0:
		c.add(field.Invalid(path.Child("name"), s.Name, fmt.Sprintf("must be at most %d lower-case letters, digits and '-', and begin and end with a letter or digit", v1alpha1.MaxSchedulerName)))
	}
	c.text(path.Child("modelName"), s.ModelName, v1alpha1.MaxModelName, "the model that requests name in their body")
	c.selector(path.Child("modelSelector"), s.ModelSelector)
	within(c, path.Child("targetPort"), s.TargetPort, 1, 65535)
	oneOf(c, path.Child("appProtocol"), s.AppProtocol, v1alpha1.AppProtocolHTTP, v1alpha1.AppProtocolH2C)
	oneOf(c, path.Child("scheduler"), s.Scheduler, v1alpha1.PickerLLMD, v1alpha1.PickerEPP)
	oneOf(c, path.Child("engineType"), s.EngineType, v1alpha1.EngineTypeVLLM, v1alpha1.EngineTypeSGLang)
	if s.Weights != nil {
		c.weights(path, s)
	}
	if r := s.ConfigMapRef; r != nil && r.Name == "" {
		c.add(field.Required(path.Child("configMapRef", "name"), "the name of the ConfigMap"))
	}
	within(c, path.Child("replicas"), s.Replicas, 1, 0)
	c.env(path, s.Env)
	c.count(path.Child("loraAdapters"), len(s.LoRAAdapters), v1alpha1.MaxAdapters)
	for i, a := range s.LoRAAdapters {
		c.text(path.Child("loraAdapters").Index(i), a, v1alpha1.MaxModelName, "an adapter's name must not be empty")
	}
	if s.RouteTimeout != nil {
		c.routeTimeout(path.Child("routeTimeout"), *s.RouteTimeout)
	}
	within(c, path.Child("logLevel"), s.LogLevel, 0, v1alpha1.MaxLogLevel)
}

func (c *checks) weights(path *field.Path, s *v1alpha1.Scheduler) {
	at := path.Child("weights")
	for _, w := range scorers {
		within(c, at.Child(w.name), *w.weight(s.Weights), 0, 0)
	}
	if s.Weights.LRU != nil && s.Scheduler != v1alpha1.PickerLLMD {
		c.add(field.Invalid(at.Child("lru"), *s.Weights.LRU, v1alpha1.MessageLRUNeedsLLMD))
	}
	if s.ConfigMapRef != nil {
		c.add(field.Invalid(path.Child("configMapRef"), field.OmitValueType{}, v1alpha1.MessageWeightsOrConfigMap+": remove one of the two"))
	}
}

// selector refuses what is not understood: a selector read differently than meant selects the wrong endpoints in
// silence.
func (c *checks) selector(path *field.Path, s *metav1.LabelSelector) {
	if s == nil {
		c.add(field.Required(path, "which model servers, by label, such as {matchLabels: {app: llama}}"))
		return
	}
	c.count(path.Child("matchLabels"), len(s.MatchLabels), v1alpha1.MaxSelectorTerms)
	c.count(path.Child("matchExpressions"), len(s.MatchExpressions), v1alpha1.MaxSelectorTerms)
	for i := range s.MatchExpressions {
		c.count(path.Child("matchExpressions").Index(i).Child("values"), len(s.MatchExpressions[i].Values), v1alpha1.MaxSelectorTerms)
	}
	if _, err := metav1.LabelSelectorAsSelector(s); err == nil {
		return
	}
	for k, v := range sorted(s.MatchLabels) {
		c.label(path.Child("matchLabels").Key(k), k, v)
	}
	for i, r := range s.MatchExpressions {
		c.requirement(path.Child("matchExpressions").Index(i), r)
	}
}

// requirement tries one expression on its own, to say which is wrong.
func (c *checks) requirement(path *field.Path, r metav1.LabelSelectorRequirement) {
	oneOf(c, path.Child("operator"), r.Operator, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
		metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)
	if r.Operator == "" {
		c.add(field.Required(path.Child("operator"), "must be In, NotIn, Exists or DoesNotExist"))
	}
	if len(validation.IsQualifiedName(r.Key)) > 0 {
		c.add(field.Invalid(path.Child("key"), r.Key, labelKeyForm))
	}
	for i, v := range r.Values {
		if len(validation.IsValidLabelValue(v)) > 0 {
			c.add(field.Invalid(path.Child("values").Index(i), v, labelValueForm))
		}
	}
	switch r.Operator {
	case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
		if len(r.Values) == 0 {
			c.add(field.Required(path.Child("values"), fmt.Sprintf("%s needs at least one value", r.Operator)))
		}
	case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			c.add(field.Invalid(path.Child("values"), r.Values, fmt.Sprintf("must be absent: %s takes no values", r.Operator)))
		}
	}
}

// What a label looks like, in a sentence.
const (
	labelKeyForm   = "must be a label name: at most 63 letters, digits, '-', '_' and '.', with an optional domain and '/' in front"
	labelValueForm = "must be a label value: at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit"
)

// labels checks the labels that something is given.
func (c *checks) labels(path *field.Path, labels map[string]string) {
	c.count(path, len(labels), v1alpha1.MaxSelectorTerms)
	for k, v := range sorted(labels) {
		c.label(path.Key(k), k, v)
	}
}

func (c *checks) label(path *field.Path, key, value string) {
	if len(validation.IsQualifiedName(key)) > 0 {
		c.add(field.Invalid(path, key, labelKeyForm))
	}
	if len(validation.IsValidLabelValue(value)) > 0 {
		c.add(field.Invalid(path, value, labelValueForm))
	}
}

var duration = regexp.MustCompile(v1alpha1.DurationPattern)

func (c *checks) routeTimeout(path *field.Path, s string) {
	if duration.MatchString(s) {
		if _, err := time.ParseDuration(s); err == nil {
			return
		}
	}
	c.add(field.Invalid(path, s, "must be a duration of h, m, s and ms without fractions, such as 90s or 1h30m; 0s lifts the limit"))
}
