package front

import (
	"io"
	"slices"

	"github.com/sluice-gateway/sluice/fleet"
)

// Prompt is a prompt on its way to an endpoint, whose tokens its pool wants to know.
type Prompt struct {
	Pool, Endpoint, Adapter string
	// Blocks are its prefix blocks.
	Blocks []uint64
	// Body is the request's body, to be closed by whoever gets it: until then it counts among the bodies held.
	Body io.ReadCloser
}

// Bodies of prompts whose tokens are asked for. Shorter ones have no whole block of an engine; longer ones would take
// seconds of the engine's own time.
const (
	minPrompt = 64
	maxPrompt = 2 << 20
)

// wantTokens lets the tokens of the prompt be found out, where the pool wants them, beside the request's way. Prompts
// that wait for that hold their bodies; half of the memory for bodies is left to requests.
func (r *Request) wantTokens(lease *fleet.Lease) {
	op := r.Path.Operation
	if r.set.Prompt == nil || r.media || len(r.Want.Blocks) == 0 || r.Want.PromptBytes < minPrompt || r.Body.Len() > maxPrompt ||
		2*r.set.budget.Used() > r.set.BodyBudget ||
		op != "chat_completions" && op != "completions" || r.header.Get("Content-Encoding") != "" || !r.Pool.WantsTokens(r.Want.Blocks) {
		return
	}
	r.set.Prompt(Prompt{Pool: r.Pool.Name(), Endpoint: lease.Endpoint.Name, Adapter: r.Want.Adapter, Blocks: slices.Clone(r.Want.Blocks),
		Body: r.Body.Reader()})
}
