// Package openai is the wire: what a client sends to an OpenAI-compatible server and what comes back, read in passing.
//
// It finds the few fields that routing needs without decoding the body, hashes the prompt into prefix blocks, reads
// token usage out of replies as their bytes go by, and writes the errors a client sees. It promises that the bytes of a
// request are never changed, that what it reads is what a strict reader of the same bytes reads, and that no input
// makes it panic or hold more memory than the Budget allows.
//
// It refuses to translate between APIs, to check parameters that only the engine can judge, and to guess: a body on
// which two readers could disagree about the model is a client's error, not a choice of ours (see Read).
package openai
