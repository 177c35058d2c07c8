package fleet

// What an engine answers is in its cache as well, and the next turn of a conversation repeats it. The gateway does not
// read answers, but knows how long they are: where an endpoint holds a prompt up to the last block of one that it has
// answered, it holds the rest of that prompt and the answer too. Without this the endpoint that has a conversation
// looks a reply's worth dearer than it is, and conversations wander.
type replies [4096]reply

// reply is what an endpoint holds beyond a block, in tokens of prompt and answer. The key is of both.
type reply struct {
	key    uint64
	tokens float32
}

func (r *replies) seat(key uint64) *reply { return &r[(key^key>>32)%uint64(len(r))] }

// shared stands in place of tokens at a block where prompts part.
const shared = -1

// goesOn is the least share of what is held beyond a block that a prompt must have there to be its continuation; all of
// it, but for what prompts are estimated wrongly by.
const goesOn = .75

// add notes an answer of the endpoint whose name has this hash; whatever has the same seat is forgotten.
func (r *replies) add(block, name uint64, tokens float32) {
	if e := r.seat(block ^ name); e.key != block^name || e.tokens != shared {
		*e = reply{block ^ name, tokens}
	}
}

// after is how many tokens the endpoint holds beyond the block of a prompt that has so many there, 0 when nothing is
// known. A prompt that ends where the answer does not yet shows that others begin alike, as with a system prompt: what
// one of them had for an answer is not the others'.
func (r *replies) after(block, name uint64, prompt float32) float32 {
	e := r.seat(block ^ name)
	switch {
	case e.key != block^name || e.tokens == shared:
		return 0
	case prompt < goesOn*e.tokens:
		e.tokens = shared
		return 0
	}
	return min(e.tokens, prompt)
}

// beyond is how many units row i holds of the request after its block at index last, the last that it holds, by what it
// answered.
func (p *Pool) beyond(r *Request, last, i int) float32 {
	unit := p.view.Request.UnitTokens
	if unit == 0 { // without units nothing can be counted in them
		return 0
	}
	rest := p.view.Request.PromptTokens - p.view.Match[i]*unit
	return p.replies.after(r.Blocks[min(last, len(r.Blocks)-1)], p.view.Snapshot.Hashes[i], max(rest, 0)) / unit
}
