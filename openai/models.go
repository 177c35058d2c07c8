package openai

import (
	"bytes"
	"encoding/json"
)

// A Model is one entry of an engine's list of models. Raw is the whole object as the engine wrote it.
type Model struct {
	ID     string
	Parent string // the base model of an adapter, empty for a base model
	Raw    json.RawMessage
}

// MergeModels writes one list of models out of several, in the order given, each object as its engine wrote it: clients
// read fields that we know nothing of. Of several with one ID the first stays. A Model without Raw is written with its
// id and parent alone.
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
			out.Write(m.JSON())
		}
	}
	out.WriteString("]}")
	return out.Bytes()
}

// JSON is the model as an entry of a list: Raw as it is, or an object of the gateway's own with its id and parent alone. It must not be
// written to.
func (m Model) JSON() []byte {
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
