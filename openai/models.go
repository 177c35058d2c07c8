package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
)

const (
	// MaxModelsPage is the largest list of models in bytes that is read from an engine.
	MaxModelsPage = 4 << 20
	maxModelList  = 10000
)

// A Model is one entry of an engine's list of models. Raw is the whole object as the engine wrote it.
type Model struct {
	ID     string
	Parent string // the base model of an adapter, empty for a base model
	Raw    json.RawMessage
}

// ParseModels reads the page of GET /v1/models. Entries without a usable id are left out, odd types of other fields are
// passed through (Q06). Raw points into page.
func ParseModels(page []byte) ([]Model, error) {
	if len(page) > MaxModelsPage {
		return nil, fmt.Errorf("cannot read models page: %d bytes, at most %d are read", len(page), MaxModelsPage)
	}
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(page, &list); err != nil {
		return nil, fmt.Errorf("cannot read models page: %w", err)
	}
	if len(list.Data) > maxModelList {
		return nil, fmt.Errorf("cannot read models page: %d models, at most %d are read", len(list.Data), maxModelList)
	}
	models := make([]Model, 0, len(list.Data))
	for _, raw := range list.Data {
		fields := map[string]json.RawMessage{}
		if json.Unmarshal(raw, &fields) != nil {
			continue
		}
		m := Model{ID: stringOf(fields["id"]), Parent: stringOf(fields["parent"]), Raw: raw}
		if m.ID != "" && len(m.ID) <= MaxModelBytes && !hasControl([]byte(m.ID)) {
			models = append(models, m)
		}
	}
	return models, nil
}

func stringOf(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// MergeModels writes one list of models out of several, in the order given, each object as its engine wrote it (Q03, Q06).
// Of several with one ID the first stays. A Model without Raw is written with its id and parent alone.
func MergeModels(lists ...[]Model) []byte {
	var out bytes.Buffer
	out.WriteString(`{"object":"list","data":[`)
	seen := map[string]bool{}
	for _, list := range lists {
		for _, m := range list {
			if seen[m.ID] {
				continue
			}
			if len(seen) > 0 {
				out.WriteByte(',')
			}
			seen[m.ID] = true
			out.Write(m.raw())
		}
	}
	out.WriteString("]}")
	return out.Bytes()
}

func (m Model) raw() []byte {
	if len(m.Raw) > 0 {
		return m.Raw
	}
	p, err := json.Marshal(struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		OwnedBy string `json:"owned_by"`
		Parent  string `json:"parent,omitempty"`
	}{m.ID, "model", "sluice", m.Parent})
	if err != nil { // strings always marshal
		return []byte("{}")
	}
	return p
}
