package route

// Step is the shape of an engine's work: what one step costs that computes `new` prompt tokens behind ctx tokens of
// context and decodes B sequences with K tokens of context between them,
//
//	max(T0, PA + PB·new) + PC·new·(ctx + new/2)/1e6 + DB·B + DC·K/1000   milliseconds.
//
// It was fitted within 7 % to measured tables of dense models. All are 0 or more.
type Step struct {
	// T0 and PA are milliseconds a step, PB a prompt token, PC a million pairs of prompt token and context token, DB a
	// decoding sequence, DC a thousand tokens of its context.
	T0 float32 `json:"t0"`
	PA float32 `json:"pa"`
	PB float32 `json:"pb"`
	PC float32 `json:"pc"`
	DB float32 `json:"db"`
	DC float32 `json:"dc"`
}

// Compute is what uncached prompt tokens behind context tokens add to the steps that compute them, in milliseconds: a
// little for each token, and for each pair of tokens that attention compares.
func (s *Step) Compute(uncached, context float32) float32 {
	return s.PB*uncached + s.PC*uncached*(context+uncached/2)*1e-6
}

// Launch is what else the step takes in which work milliseconds of prompts are computed.
func (s *Step) Launch(work, running, context float32) float32 {
	return max(s.T0-work, s.PA) + s.beside(running, context)
}

// Token is how long a step takes that only decodes.
func (s *Step) Token(running, context float32) float32 {
	return s.T0 + s.beside(running, context)
}

// beside is what sequences that decode add to a step.
func (s *Step) beside(running, context float32) float32 {
	return s.DB*running + s.DC*context*1e-3
}

// Rate is what is known of one kind of endpoint (model, GPU, parallelism, engine), shared by all endpoints of that
// kind: the shape of its steps, and how many times longer they take than that, which is learned.
type Rate struct {
	// Name says which kind, for explanations; Source where the shape comes from.
	Name   string `json:"name"`
	Source string `json:"source,omitempty"`
	Step
	// Prefill is the factor on first tokens, Decode that on the tokens after, both > 0.
	Prefill float32 `json:"prefill"`
	Decode  float32 `json:"decode"`
}

// typicalPrompt is the prompt, in tokens, of which Rate.PromptTokenMS speaks.
const typicalPrompt = 1000

// PromptTokenMS is milliseconds per token of a prompt of 1000 tokens that is computed alone, for people.
func (r *Rate) PromptTokenMS() float32 {
	work := r.Compute(typicalPrompt, 0)
	return r.Prefill * (work + r.Launch(work, 0, 0)) / typicalPrompt
}

// OutputTokenMS is milliseconds between output tokens of a request that decodes alone, for people.
func (r *Rate) OutputTokenMS() float32 { return r.Decode * r.Token(1, typicalPrompt) }
