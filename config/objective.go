package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha2"
)

// Objective is a priority that requests of a scheduler may name.
type Objective struct {
	// Name is the document's, by which requests name it.
	Name      string
	Scheduler string
	// Priority is higher for what is more urgent; requests without an objective have 0.
	Priority int64
}

// takeObjective checks an InferenceObjective on its own and keeps it.
func (b *builder) takeObjective(d *document) {
	o := decode[v1alpha2.InferenceObjective](d)
	c := &checks{}
	c.metadata(&o.ObjectMeta)
	c.poolRef(o.Spec.PoolRef, "the scheduler whose requests may name the objective, such as {name: llama}")
	d.add(c.errs...)
	b.objectives = append(b.objectives, o)
	b.objectiveDocs = append(b.objectiveDocs, d)
}

// pairObjectives checks that every document's pool is there, and no two of a group have one name.
func (b *builder) pairObjectives() {
	names := make(map[string]string)
	for i, o := range b.objectives {
		b.uniqueInGroup(b.objectiveDocs[i], names, o.APIVersion, o.Name)
		b.hasPool(b.objectiveDocs[i], o.Spec.PoolRef)
	}
}

// buildObjectives keeps one objective of each name for a scheduler. Of two groups' llm-d's counts, which is what the older
// one's documents are moved to.
func (b *builder) buildObjectives() {
	type named struct{ scheduler, name string }
	group := func(i int) string { g, _, _ := strings.Cut(b.objectives[i].APIVersion, "/"); return g }
	first := make(map[named]int)
	for i, o := range b.objectives {
		key := named{o.Spec.PoolRef.Name, o.Name}
		j, taken := first[key]
		if !taken {
			first[key] = i
			continue
		}
		over := i
		if group(i) == v1alpha2.LLMDGroup {
			first[key], over = i, j
		}
		b.warn(b.objectiveDocs[over].ref(), field.NewPath("apiVersion"), b.objectives[over].APIVersion, "has the name of one of %s, which counts: delete one of them", v1alpha2.LLMDGroup)
	}
	for _, i := range slices.Sorted(maps.Values(first)) {
		o := b.objectives[i]
		made := Objective{Name: o.Name, Scheduler: o.Spec.PoolRef.Name}
		if o.Spec.Priority != nil {
			made.Priority = *o.Spec.Priority
		}
		b.config.Objectives = append(b.config.Objectives, made)
	}
}

// objectiveLines says for people which objectives each scheduler's requests may name, the most urgent first.
func (c *Config) objectiveLines() map[string][]string {
	list := slices.SortedFunc(slices.Values(c.Objectives), func(x, y Objective) int {
		return cmp.Or(cmp.Compare(y.Priority, x.Priority), cmp.Compare(x.Name, y.Name))
	})
	words := make(map[string][]string)
	for _, o := range list {
		words[o.Scheduler] = append(words[o.Scheduler], fmt.Sprintf("%s %d", o.Name, o.Priority))
	}
	lines := make(map[string][]string, len(words))
	for scheduler, list := range words {
		lines[scheduler] = wrap(list, 76)
	}
	return lines
}
