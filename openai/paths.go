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
	if id, ok := strings.CutPrefix(path, pathModels+"/"); ok && modelPath(id) {
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

// fixedPaths are the paths with a body, in the order in which they are asked for most. The latter ones are what engines
// serve beside the generative calls, some of it also without the version, as vLLM does.
func fixedPaths() [27]struct{ path, operation string } {
	return [...]struct{ path, operation string }{
		{"/v1/chat/completions", "chat_completions"},
		{"/v1/completions", "completions"},
		{"/v1/responses", "responses"},
		{"/v1/embeddings", "embeddings"},
		{"/v1/messages", "messages"},
		{"/v1/messages/count_tokens", "count_tokens"},
		{"/v1/responses/input_tokens", "count_tokens"},
		{"/v1/rerank", "rerank"}, {"/v2/rerank", "rerank"}, {"/rerank", "rerank"},
		{"/v1/score", "score"}, {"/score", "score"},
		{"/v1/classify", "classify"}, {"/classify", "classify"},
		{"/v1/pooling", "pooling"}, {"/pooling", "pooling"},
		{"/v1/moderations", "moderations"},
		{"/v1/audio/transcriptions", "audio_transcriptions"}, {"/v1/audio/translations", "audio_transcriptions"},
		{"/v1/audio/speech", "audio_speech"},
		{"/v1/images/generations", "images"}, {"/v1/images/edits", "images"}, {"/v1/images/variations", "images"},
		{"/v1/tokenize", "tokenize"}, {"/v1/detokenize", "tokenize"}, {"/tokenize", "tokenize"}, {"/detokenize", "tokenize"},
	}
}

// pathModels lists models.
const pathModels = "/v1/models"

// FixedPaths are the paths of the table that are open as they are, without an identifier in them.
func FixedPaths() []string {
	list := []string{pathModels}
	for _, row := range fixedPaths() {
		list = append(list, row.path)
	}
	return list
}

func fixedPath(path string) (Path, bool) {
	if path == pathModels {
		return Path{Operation: "models"}, true
	}
	for _, row := range fixedPaths() {
		if row.path == path {
			return Path{Operation: row.operation, Body: true}, true
		}
	}
	return Path{}, false
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
