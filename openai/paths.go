package openai

import "strings"

// A Path says what kind of call a URL path is.
type Path struct {
	// Operation names the kind of call for metric labels; one of a fixed, small set, whatever paths clients try.
	Operation string
	// Body is true when the call carries a body with a model in it; otherwise Read has nothing to read.
	Body bool
	// Stateful is true for calls on an object that lives at one endpoint (a stored response), which its identifier
	// selects.
	Stateful bool
}

// PathOf looks a URL path (decoded, without query) up in the one table of paths that are open to clients. One trailing
// slash is tolerated, as some clients add one. What is not in the table is closed: engines serve their administration
// (loading adapters, resetting caches, sleeping, profiling) on the same port.
func PathOf(path string) (Path, bool) {
	path = strings.TrimSuffix(path, "/")
	if p, ok := fixedPath(path); ok {
		return p, true
	}
	if rest, ok := strings.CutPrefix(path, "/v1/responses/"); ok {
		return responsePath(rest)
	}
	if id, ok := strings.CutPrefix(path, "/v1/models/"); ok && modelPath(id) {
		return Path{Operation: "models"}, true
	}
	return Path{}, false
}

// modelPath allows slashes, which names of models hold (org/name), but nothing that climbs out of the folder.
func modelPath(id string) bool {
	for segment := range strings.SplitSeq(id, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

func fixedPath(path string) (Path, bool) {
	op := ""
	switch path {
	case "/v1/chat/completions":
		op = "chat_completions"
	case "/v1/completions":
		op = "completions"
	case "/v1/responses":
		op = "responses"
	case "/v1/embeddings":
		op = "embeddings"
	case "/v1/messages":
		op = "messages"
	case "/v1/messages/count_tokens", "/v1/responses/input_tokens":
		op = "count_tokens"
	case "/v1/models":
		return Path{Operation: "models"}, true
	default:
		return secondaryPath(path)
	}
	return Path{Operation: op, Body: true}, true
}

// secondaryPath holds what engines serve beside the generative calls, some of it also without the version, as vLLM
// does.
func secondaryPath(path string) (Path, bool) {
	op := ""
	switch path {
	case "/v1/rerank", "/v2/rerank", "/rerank":
		op = "rerank"
	case "/v1/score", "/score":
		op = "score"
	case "/v1/classify", "/classify":
		op = "classify"
	case "/v1/pooling", "/pooling":
		op = "pooling"
	case "/v1/moderations":
		op = "moderations"
	case "/v1/audio/transcriptions", "/v1/audio/translations":
		op = "audio_transcriptions"
	case "/v1/audio/speech":
		op = "audio_speech"
	case "/v1/images/generations", "/v1/images/edits", "/v1/images/variations":
		op = "images"
	case "/v1/tokenize", "/v1/detokenize", "/tokenize", "/detokenize":
		op = "tokenize"
	default:
		return Path{}, false
	}
	return Path{Operation: op, Body: true}, true
}

// responsePath knows /v1/responses/{id} and the two calls below it.
func responsePath(rest string) (Path, bool) {
	id, call, deeper := strings.Cut(rest, "/")
	if id == "" || id == "." || id == ".." || deeper && call != "cancel" && call != "input_items" {
		return Path{}, false
	}
	return Path{Operation: "responses", Stateful: true}, true
}

// ResponseID is the identifier in a path below /v1/responses/, or empty.
func ResponseID(path string) string {
	p, ok := PathOf(path)
	if !ok || !p.Stateful {
		return ""
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/responses/"), "/")
	return id
}
