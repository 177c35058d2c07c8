package scrape

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"unicode"

	"github.com/sluice-gateway/sluice/fleet"
)

const (
	modelsPath = "/v1/models"
	healthPath = "/health"
	// tritonPath is where Triton, which has neither of the others, says that it serves.
	tritonPath = "/v2/health/ready"
	infoPath   = "/info"
	propsPath  = "/props"
)

// finding is what an endpoint said of itself.
type finding struct {
	// engine is what the list of models or the server's description tell, empty if nothing.
	engine string
	// listed says that models are the whole answer; without it the question failed and earlier answers hold.
	listed bool
	models []fleet.Model
	// capacity is the KV cache in tokens, NaN if not said.
	capacity float64
	// refused says in words that the configured key was not accepted.
	refused string
	// err is why nothing came back at all.
	err error
}

// ask finds out what an endpoint serves. engine is what is known already, empty if nothing is.
func (c *client) ask(ctx context.Context, engine string) finding {
	f := finding{capacity: math.NaN()}
	a, err := c.fetch(ctx, modelsPath)
	if err != nil {
		f.err = err
		return f
	}
	switch a.status {
	case http.StatusOK:
		f.models, f.engine, f.listed = parseModels(a.body)
	case http.StatusUnauthorized, http.StatusForbidden:
		f.refused = c.keyWords(modelsPath, a.status)
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		f.listed = true
	}
	if engine == "tgi" || engine == "" && f.engine == "" {
		c.askInfo(ctx, &f)
	}
	if engine == "llamacpp" || engine == "" && f.engine == "llamacpp" {
		c.askProps(ctx, &f)
	}
	return f
}

func (c *client) fetch(ctx context.Context, path string) (answer, error) {
	r, err := c.request(c.endpoint.Address(), path, "application/json")
	if err != nil {
		return answer{}, err
	}
	return c.get(ctx, r, maxModels, nil)
}

// keyWords explains a 401 or 403.
func (c *client) keyWords(path string, status int) string {
	if c.endpoint.APIKey == "" {
		return fmt.Sprintf("%s wants a key (status %d) and none is configured", path, status)
	}
	return fmt.Sprintf("the configured key is refused at %s (status %d)", path, status)
}

// askInfo reads the description that TGI gives of itself: its model where it lists none, and the size of its cache.
func (c *client) askInfo(ctx context.Context, f *finding) {
	a, err := c.fetch(ctx, infoPath)
	if err != nil || a.status != http.StatusOK {
		return
	}
	var info struct {
		Model  string   `json:"model_id"`
		Tokens *float64 `json:"max_batch_total_tokens"`
		Router string   `json:"router"`
	}
	if json.Unmarshal(a.body, &info) != nil || info.Model == "" {
		return
	}
	if f.engine == "" && info.Router != "" {
		f.engine = "tgi"
	}
	if info.Tokens != nil && *info.Tokens > 0 && *info.Tokens <= absurd {
		f.capacity = *info.Tokens
	}
	if len(f.models) == 0 {
		raw, err := json.Marshal(map[string]string{"id": info.Model, "object": "model", "owned_by": "tgi"})
		if err == nil {
			f.models, f.listed = []fleet.Model{{ID: info.Model, Raw: raw}}, true
		}
	}
}

// askProps reads the settings that llama.cpp tells of itself: the size of its cache, which its metrics lack.
func (c *client) askProps(ctx context.Context, f *finding) {
	a, err := c.fetch(ctx, propsPath)
	if err != nil || a.status != http.StatusOK {
		return
	}
	f.capacity = parseProps(a.body)
}

// parseProps is the size in tokens of llama.cpp's KV cache, NaN if its settings don't say: each slot has a context of
// its own. Nothing tells where slots share one instead. The size is too large then, which costs less than one too
// small: a prefix that is held and not believed is computed again elsewhere.
func parseProps(body []byte) float64 {
	var props struct {
		Settings struct {
			Context float64 `json:"n_ctx"`
		} `json:"default_generation_settings"`
		Slots float64 `json:"total_slots"`
	}
	if json.Unmarshal(body, &props) != nil {
		return math.NaN()
	}
	tokens := props.Settings.Context * max(props.Slots, 1)
	if !(tokens >= 1 && tokens <= absurd) {
		return math.NaN()
	}
	return tokens
}

// parseModels reads a list of models. It keeps each object as it is, leaves out what has no usable id, and takes the
// engine's name from the first owner that is one. It reports false for what is no list.
func parseModels(body []byte) (models []fleet.Model, engine string, ok bool) {
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if json.Unmarshal(body, &list) != nil {
		return nil, "", false
	}
	seen := make(map[string]bool)
	for _, raw := range list.Data {
		var m struct {
			ID     any `json:"id"`
			Parent any `json:"parent"`
			Owner  any `json:"owned_by"`
		}
		if json.Unmarshal(raw, &m) != nil {
			continue
		}
		id, _ := m.ID.(string)
		if !usable(id) || seen[id] {
			continue
		}
		seen[id] = true
		parent, _ := m.Parent.(string)
		if parent == id {
			parent = ""
		}
		models = append(models, fleet.Model{ID: id, Parent: parent, Raw: raw})
		if owner, _ := m.Owner.(string); engine == "" && owner != "" {
			engine = engineOfOwner(owner)
		}
	}
	return models, engine, true
}

// usable reports whether a model may be called that: no client can ask for a longer name, and one with control
// characters would spoil logs.
func usable(id string) bool {
	const longest = 1 << 10
	return id != "" && len(id) <= longest && !strings.ContainsFunc(id, unicode.IsControl)
}

func engineOfOwner(owner string) string {
	for i := range dialects {
		if dialects[i].owner == owner {
			return dialects[i].engine
		}
	}
	return ""
}

// ready asks whether a server without metrics serves, at path or, if that is empty, wherever it answers; and says where
// it did.
func (c *client) ready(ctx context.Context, path string) (answered string, status int, err error) {
	paths := []string{modelsPath, healthPath, tritonPath}
	if path != "" {
		paths = []string{path}
	}
	for _, p := range paths {
		a, e := c.fetch(ctx, p)
		if e != nil {
			return "", 0, e
		}
		if a.status/100 == 2 {
			return p, a.status, nil
		}
		if status == 0 {
			status = a.status
		}
	}
	return "", status, nil
}
