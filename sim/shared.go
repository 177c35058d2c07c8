package sim

// sharing tells which of a workload's segments more than one place has. What is computed for the others nobody else can
// ask for: with prompts that have nothing in common, a world would spend half its time on remembering and forgetting
// them.
type sharing map[uint64]bool

func newSharing(requests []Request) sharing {
	s := make(sharing)
	note := func(id uint64) {
		_, known := s[id]
		s[id] = known
	}
	for i := range requests {
		for _, segment := range requests[i].Prompt {
			note(segment.ID)
		}
		note(requests[i].Reply)
	}
	return s
}

// blocks is how many leading blocks of a request's prompt and answer another request may have too: every hash depends
// on all before it.
func (s sharing) blocks(r *Request) int {
	tokens := 0
	for _, segment := range r.Prompt {
		if !s[segment.ID] {
			return tokens / BlockTokens
		}
		tokens += segment.Tokens
	}
	if s[r.Reply] {
		tokens += r.Output
	}
	return tokens / BlockTokens
}
