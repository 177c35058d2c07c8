package front

import (
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
)

// Models is the answer to /v1/models as JSON, the union over the pools that have a ready endpoint, and to
// /v1/models/{id} one of it.
func (r *Request) Models() ([]byte, *openai.Error) {
	var lists [][]openai.Model
	for _, p := range r.desk.fleet.Pools() {
		if p.Ready() {
			lists = append(lists, append(listed(p), r.aliases(p)...))
		}
	}
	id := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(r.url, "/"), "/v1/models"), "/")
	if id == "" {
		return openai.MergeModels(lists...), nil
	}
	id = strings.TrimPrefix(id, "/")
	for _, list := range lists {
		for _, m := range list {
			if m.ID == id {
				return m.JSON(), nil
			}
		}
	}
	return nil, openai.ModelNotFound.Errorf("no pool lists %.100q; GET /v1/models lists what is served", id)
}

// aliases are the names that a pool's requests may have beside those that are served.
func (r *Request) aliases(p *fleet.Pool) []openai.Model {
	var names []string
	for name, rule := range r.set.rewrites.aliases {
		if _, served := r.desk.fleet.Lookup(name); !served && rule.pool == p.Name() && len(rule.targets) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	list := make([]openai.Model, len(names))
	for i, name := range names {
		list[i].ID = name
	}
	return list
}

// listed is what a pool's engines list. Names that only the configuration knows are added, because requests for them
// are served: an engine that was started under a path lists that path.
func listed(p *fleet.Pool) []openai.Model {
	var list []openai.Model
	have := make(map[string]bool)
	for _, m := range p.Models() {
		have[m.ID] = true
		list = append(list, openai.Model{ID: m.ID, Parent: m.Parent, Raw: m.Raw})
	}
	if name := p.Config().Model; name != "" && !have[name] {
		list = append(list, openai.Model{ID: name})
	}
	return list
}
