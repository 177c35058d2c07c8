package front

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// Rewrite is a set of rules by which requests go on under the name of another model. A rule sees the requests that name
// a model or adapter of its pool, and those that name what it matches and no pool serves. Of the rules that match a
// request the first in Options counts, those that match by name before those that match all; what it makes of the
// request is not matched again.
type Rewrite struct {
	// Name keeps its choices apart from those of others.
	Name string
	// Pool is the name of the pool whose requests are matched. Where a request goes is told by its new name; one that
	// nobody is known to serve stays with this pool.
	Pool  string
	Rules []RewriteRule
}

// RewriteRule is one rule of a Rewrite.
type RewriteRule struct {
	// Models are the names that are matched, each whole; none for all.
	Models []string
	// Targets share the requests by weight; without one they stay as they are.
	Targets []RewriteTarget
}

// RewriteTarget is one of the names that requests go on under.
type RewriteTarget struct {
	// Model is UTF-8 text without control characters.
	Model string
	// Weight is its share, above 0.
	Weight int
}

// rewrites is Options.Rewrites made ready for looking up. The zero value has no rules.
type rewrites struct {
	exact   map[poolModel]*rule
	aliases map[string]*rule // by name alone, for names that no pool serves
	general map[string]*rule // by pool
}

type poolModel struct{ pool, model string }

type rule struct {
	name, pool string
	targets    []RewriteTarget
	total      uint64
}

func newRewrites(list []Rewrite) rewrites {
	w := rewrites{exact: make(map[poolModel]*rule), aliases: make(map[string]*rule), general: make(map[string]*rule)}
	for _, doc := range list {
		for _, r := range doc.Rules {
			made := &rule{name: doc.Name, pool: doc.Pool, targets: r.Targets}
			for _, t := range r.Targets {
				made.total += uint64(t.Weight)
			}
			if len(r.Models) == 0 {
				first(w.general, doc.Pool, made)
			}
			for _, m := range r.Models {
				first(w.exact, poolModel{doc.Pool, m}, made)
				first(w.aliases, m, made)
			}
		}
	}
	return w
}

func first[K comparable](m map[K]*rule, key K, r *rule) {
	if _, taken := m[key]; !taken {
		m[key] = r
	}
}

// rule is what holds for requests that name a model, which are the pool's where that is not nil; nil for none.
func (w *rewrites) rule(pool *fleet.Pool, model string) *rule {
	switch {
	case model == "":
		return nil
	case pool == nil:
		return w.aliases[model]
	}
	if r := w.exact[poolModel{pool.Name(), model}]; r != nil {
		return r
	}
	return w.general[pool.Name()]
}

// choose picks a target by a key, for one key always the same. While the targets' order stays and weights move from one
// to the next, only as many keys change as the weights do.
func (r *rule) choose(key string) string {
	sum := sha256.Sum256([]byte(r.name + "\x00" + key))
	at, _ := bits.Mul64(binary.BigEndian.Uint64(sum[:]), r.total)
	for _, t := range r.targets {
		if at < uint64(t.Weight) {
			return t.Model
		}
		at -= uint64(t.Weight)
	}
	return r.targets[len(r.targets)-1].Model
}

// rewrite gives the request the name that it goes on under, and its body, where that has a model. Requests of one
// session share their choice; those without are told apart by their id, so that whoever asks again with the same gets
// the same.
func (r *Request) rewrite(inBody bool) *openai.Error {
	r.Model = r.Asked
	if len(r.set.Rewrites) == 0 {
		return nil
	}
	var pool *fleet.Pool
	if pools := r.desk.fleet.Pools(); !r.set.SelectModel && len(pools) > 0 {
		pool = pools[0]
	} else if target, ok := r.desk.fleet.Lookup(r.Asked); ok {
		pool = target.Pool
	}
	rule := r.set.rewrites.rule(pool, r.Asked)
	if rule == nil || len(rule.targets) == 0 {
		return nil
	}
	r.rule = rule
	if r.Model = rule.targets[0].Model; len(rule.targets) > 1 {
		key := r.sessionID(rule.pool)
		if key == "" {
			key = r.ID
		}
		r.Model = rule.choose(key)
	}
	if !inBody || r.Model == r.Asked {
		return nil
	}
	body, err := r.scratch.WithModel(r.Model)
	if err != nil {
		return openai.AsError(err)
	}
	r.Body.Free()
	r.Body, r.Rewritten = body, true
	return nil
}

// labelRuled keeps the name asked for where it is one that somebody configured or serves.
func (r *Request) labelRuled() {
	_, served := r.desk.fleet.Lookup(r.Asked)
	if served || r.set.rewrites.aliases[r.Asked] != nil {
		r.Label = r.Asked
	}
}

// ruledPool is the pool of the rule that gave the request its name; nil where none has or the pool is gone.
func (r *Request) ruledPool() *fleet.Pool {
	if r.rule == nil {
		return nil
	}
	for _, p := range r.desk.fleet.Pools() {
		if p.Name() == r.rule.pool {
			return p
		}
	}
	return nil
}
