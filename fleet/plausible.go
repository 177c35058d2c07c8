package fleet

// What engines and peers say of their requests is theirs to get wrong, and one absurd number must not decide where the
// next thousand requests go. What no engine can do is not learned from, and what few requests are weighs like many.
const (
	// minDecodeToken is the least time that a token of a stream takes, in seconds. The fastest engines need some 300 us,
	// and several tokens in one step do not make it ten times less; below are answers that were held back and came at once.
	minDecodeToken = 20e-6
	// minPrefillToken is the least time that a token of a prompt takes, in seconds, where there are more than
	// heaviestPrefill: the last steps of two long prompts may be one, and then their first tokens come together. Leaving the
	// second of them out would make the engine look slower than it is.
	minPrefillToken = 1e-6
	// heaviestDecode and heaviestPrefill are the tokens beyond which evidence weighs no more.
	heaviestDecode, heaviestPrefill = 1 << 13, 1 << 18
	// A prompt has at most a token for each of its bytes, and those of a template, and at least one for so many bytes; an
	// answer is at most maxOutput tokens.
	templateTokens, maxTokenBytes, maxOutput = 1 << 12, 1 << 8, 1 << 18
	// maxTokens is the most of any prompt: whole numbers are exact in 32 bits as far as that.
	maxTokens = 1 << 24
	// meanTokens and meanOutput are the most that a prompt and an answer count for in the means of all, and heaviestBytes those
	// beyond which a prompt weighs no more in the bytes per token.
	meanTokens, meanOutput, heaviestBytes = 1 << 20, 1 << 15, 1 << 20
)

// plausible is an outcome without the counts that cannot be: those are not known.
func (o Outcome) plausible(promptBytes int) Outcome {
	if o.PromptTokens < promptBytes/maxTokenBytes || o.PromptTokens > promptBytes+templateTokens {
		o.PromptTokens = 0
	}
	if o.OutputTokens < 0 || o.OutputTokens > maxOutput {
		o.OutputTokens = 0
	}
	return o
}
