package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/api/v1alpha2"
)

// Rewrite is a document's rules by which requests go on under the names of other models.
type Rewrite struct {
	// Name is the document's.
	Name string
	// Scheduler is whose requests the rules see: those for its model and adapters, and those for names that a rule matches and
	// nobody serves.
	Scheduler string
	Rules     []RewriteRule
}

// RewriteRule is one rule of a Rewrite.
type RewriteRule struct {
	// Models are the names that it matches; none: all.
	Models []string
	// Targets share the requests by weight; none: the requests stay as they are.
	Targets []RewriteTarget
}

// RewriteTarget is a name that requests go on under.
type RewriteTarget struct {
	Model string
	// Weight is above 0.
	Weight int
}

// takeRewrite checks an InferenceModelRewrite on its own and keeps it.
func (b *builder) takeRewrite(d *document) {
	r := decode[v1alpha2.InferenceModelRewrite](d)
	d.add(validateRewrite(r)...)
	b.rewrites = append(b.rewrites, r)
	b.rewriteDocs = append(b.rewriteDocs, d)
}

func validateRewrite(r *v1alpha2.InferenceModelRewrite) field.ErrorList {
	c := &checks{}
	c.metadata(&r.ObjectMeta)
	c.poolRef(r.Spec.PoolRef, "the scheduler whose requests are rewritten, such as {name: llama}")
	path := field.NewPath("spec", "rules")
	if r.Spec.Rules == nil {
		c.add(field.Required(path, "at least one rule"))
	}
	for i := range r.Spec.Rules {
		c.rewriteRule(path.Index(i), &r.Spec.Rules[i])
	}
	return c.errs
}

// poolRef checks whose requests a document is for.
func (c *checks) poolRef(p *v1alpha2.PoolReference, why string) {
	path := field.NewPath("spec", "poolRef")
	if p == nil {
		c.add(field.Required(path, why))
		return
	}
	oneOf(c, path.Child("group"), p.Group, v1alpha2.PoolGroup, v1alpha2.ExtensionGroup)
	oneOf(c, path.Child("kind"), p.Kind, v1alpha2.PoolKind)
	if p.Name == "" {
		c.add(field.Required(path.Child("name"), "the name of a scheduler"))
	}
}

func (c *checks) rewriteRule(path *field.Path, r *v1alpha2.RewriteRule) {
	for i, m := range r.Matches {
		at := path.Child("matches").Index(i).Child("model")
		if m.Model == nil {
			c.add(field.Required(at, "what to match, such as {value: food-review}; leave matches out to match every request"))
			continue
		}
		if m.Model.Type != nil {
			oneOf(c, at.Child("type"), *m.Model.Type, v1alpha2.MatchExact)
		}
		c.modelName(at.Child("value"), m.Model.Value, "the whole name of the model to match")
	}
	if r.Targets != nil && len(r.Targets) == 0 {
		c.add(field.Required(path.Child("targets"), "at least one target; leave targets out to let requests go on as they are"))
	}
	weighted := 0
	for _, t := range r.Targets {
		if t.Weight != nil {
			weighted++
		}
	}
	for i, t := range r.Targets {
		at := path.Child("targets").Index(i)
		c.modelName(at.Child("modelRewrite"), t.ModelRewrite, "the name of the model that requests go on to")
		within(c, at.Child("weight"), t.Weight, 1, v1alpha2.MaxTargetWeight)
		if t.Weight == nil && weighted > 0 {
			c.add(field.Required(at.Child("weight"), v1alpha2.MessageAllWeights))
		}
	}
}

// modelName checks a name that stands in requests.
func (c *checks) modelName(path *field.Path, name, why string) {
	c.text(path, name, v1alpha1.MaxModelName, why)
	if strings.ContainsFunc(name, unicode.IsControl) {
		c.add(field.Invalid(path, name, "must not hold control characters"))
	}
}

// pairRewrites checks that every document's pool is there, and no two have one name.
func (b *builder) pairRewrites() {
	names := make(map[string]string)
	for i, r := range b.rewrites {
		d := b.rewriteDocs[i]
		b.uniqueInGroup(d, names, r.APIVersion, r.Name)
		b.hasPool(d, r.Spec.PoolRef)
	}
}

// hasPool tells of a document for a scheduler that isn't there.
func (b *builder) hasPool(d *document, p *v1alpha2.PoolReference) {
	if p != nil && p.Name != "" && b.gateway != nil && !b.hasScheduler(p.Name) {
		d.add(field.Invalid(field.NewPath("spec", "poolRef", "name"), p.Name, "is the name of no scheduler"))
	}
}

// uniqueInGroup tells of a second document with a name. In a cluster one of another group may have the same.
func (b *builder) uniqueInGroup(d *document, names map[string]string, apiVersion, name string) {
	if name == "" {
		return
	}
	group, _, _ := strings.Cut(apiVersion, "/")
	key := group + " " + name
	if first, taken := names[key]; taken {
		d.add(field.Invalid(field.NewPath("metadata", "name"), name, fmt.Sprintf("must be unique: %s has the same name", first)))
		return
	}
	names[key] = d.place()
}

// unique tells of a second document with a name.
func (b *builder) unique(d *document, names map[string]string, name string) {
	b.uniqueInGroup(d, names, "", name)
}

// buildRewrites puts the documents into their order: the oldest first, those that have not been created anywhere last, as if
// they were created now, and those of one age as they stand.
func (b *builder) buildRewrites() {
	order := make([]int, len(b.rewrites))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		one, two := b.rewrites[i].CreationTimestamp, b.rewrites[j].CreationTimestamp
		if one.IsZero() || two.IsZero() {
			return cmp.Compare(age(one.IsZero()), age(two.IsZero()))
		}
		return one.Compare(two.Time)
	})
	m := b.config.matcher()
	for _, i := range order {
		r, d := b.rewrites[i], b.rewriteDocs[i]
		w := Rewrite{Name: r.Name, Scheduler: r.Spec.PoolRef.Name}
		for n := range r.Spec.Rules {
			w.Rules = append(w.Rules, rewriteRule(&r.Spec.Rules[n]))
			b.unmatched(d, field.NewPath("spec", "rules").Index(n), w.Scheduler, &w.Rules[n], m)
		}
		b.config.Rewrites = append(b.config.Rewrites, w)
	}
}

func age(unborn bool) int {
	if unborn {
		return 1
	}
	return 0
}

func rewriteRule(r *v1alpha2.RewriteRule) RewriteRule {
	var out RewriteRule
	for _, m := range r.Matches {
		out.Models = append(out.Models, m.Model.Value)
	}
	for _, t := range r.Targets {
		weight := 1
		if t.Weight != nil {
			weight = int(*t.Weight)
		}
		out.Targets = append(out.Targets, RewriteTarget{t.ModelRewrite, weight})
	}
	return out
}

// match is what a rule matches: requests for a scheduler's names, or those for names that nobody serves, by name, or all where
// that is empty.
type match struct{ scheduler, model string }

// matcher goes over rules in the order in which they count and tells which of their matches a request can meet.
type matcher struct {
	selects bool
	owner   map[string]string // the scheduler that has a model's or adapter's name
	seen    map[match]string
}

func (c *Config) matcher() *matcher {
	m := &matcher{selects: c.SelectModel, owner: make(map[string]string), seen: make(map[match]string)}
	for _, p := range c.Pools {
		m.owner[p.Model] = p.Scheduler
		for _, a := range p.Adapters {
			m.owner[a] = p.Scheduler
		}
	}
	return m
}

// take says why no request meets a match of a rule, which is called here; empty where one can. An empty model matches all.
func (m *matcher) take(scheduler, model, here string) string {
	key := match{m.owner[model], model} // of no scheduler where nobody has the name
	if model == "" {
		key.scheduler = scheduler
	}
	switch first := m.seen[key]; {
	case m.selects && key.scheduler != "" && key.scheduler != scheduler:
		return fmt.Sprintf("is a name of scheduler %q, whose requests rules for %q do not see", key.scheduler, scheduler)
	case first != "" && model == "":
		return fmt.Sprintf("matches every request of scheduler %q, and so does %s, which comes before it", scheduler, first)
	case first != "":
		return fmt.Sprintf("is matched already by %s, which comes before it", first)
	}
	m.seen[key] = here
	return ""
}

// unmatched tells of matches that no request meets.
func (b *builder) unmatched(d *document, path *field.Path, scheduler string, r *RewriteRule, m *matcher) {
	here := fmt.Sprintf("%s %s", d.ref(), path)
	if len(r.Models) == 0 {
		if why := m.take(scheduler, "", here); why != "" {
			b.warn(d.ref(), path, "", "%s", why)
		}
	}
	for i, model := range r.Models {
		if why := m.take(scheduler, model, here); why != "" {
			b.warn(d.ref(), path.Child("matches").Index(i).Child("model", "value"), model, "%s", why)
		}
	}
}

// rewriteLines says for people what becomes of each scheduler's requests, rule by rule in the order in which they count.
func (c *Config) rewriteLines() map[string][]string {
	named, others := make(map[string][]string), make(map[string][]string)
	m := c.matcher()
	for _, w := range c.Rewrites {
		for _, r := range w.Rules {
			goes := " goes on as " + c.targets(w.Scheduler, r.Targets)
			if len(r.Models) == 0 && m.take(w.Scheduler, "", "a rule") == "" {
				others[w.Scheduler] = append(others[w.Scheduler], "any other"+goes)
			}
			var names []string
			for _, model := range r.Models {
				if m.take(w.Scheduler, model, "a rule") == "" {
					names = append(names, printable(model))
				}
			}
			if len(names) > 0 {
				named[w.Scheduler] = append(named[w.Scheduler], either(names)+goes)
			}
		}
	}
	for scheduler, lines := range others {
		named[scheduler] = append(named[scheduler], lines...)
	}
	return named
}

func (c *Config) targets(scheduler string, list []RewriteTarget) string {
	if len(list) == 0 {
		return "it is"
	}
	total := 0
	for _, t := range list {
		total += t.Weight
	}
	words := make([]string, len(list))
	for i, t := range list {
		words[i] = printable(t.Model)
		if len(list) > 1 {
			words[i] += " " + strconv.FormatFloat(100*float64(t.Weight)/float64(total), 'g', 3, 64) + "%"
		}
		for _, p := range c.Pools {
			if c.SelectModel && p.Scheduler != scheduler && (p.Model == t.Model || slices.Contains(p.Adapters, t.Model)) {
				words[i] += " of scheduler " + p.Scheduler
			}
		}
	}
	return strings.Join(words, ", ")
}
