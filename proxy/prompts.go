package proxy

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

// wantTokens lets the tokens of the prompt be found out, where the pool wants them, beside the request's way. Prompts that wait for that hold
// their bodies; half of the memory for bodies is left to requests.
func (c *call) wantTokens(lease *fleet.Lease) {
	op := c.path.Operation
	if c.set.Prompt == nil || c.media || len(c.want.Blocks) == 0 || c.want.PromptBytes < minPrompt || c.body.Len() > maxPrompt ||
		2*c.set.budget.Used() > c.set.BodyBudget ||
		op != "chat_completions" && op != "completions" || c.r.Header.Get("Content-Encoding") != "" || !c.pool.WantsTokens(c.want.Blocks) {
		return
	}
	c.set.Prompt(Prompt{Pool: c.pool.Name(), Endpoint: lease.Endpoint.Name, Adapter: c.want.Adapter, Blocks: slices.Clone(c.want.Blocks),
		Body: c.body.Reader()})
}
