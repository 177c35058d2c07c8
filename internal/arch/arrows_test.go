package arch

import (
	"fmt"
	"slices"
	"strings"
)

// room is one row of the table of rooms.
type room struct {
	// own are the rooms that its code may import; everything is the wildcard.
	own []string
	// outside are the packages of other modules that its code may import, with all below them; nil means none. A new row is a
	// dependency, which has its line in docs/decisions/0008.
	outside []string
	// std are standard packages that its code must not import, with all below them.
	std []string
	// why completes "because", for whoever meets the rule.
	why string
}

const everything = "*"

// impure are the standard packages through which a decision could come to depend on something that is not in its View.
func impure() []string { return []string{"time", "log", "net", "os", "math/rand", "crypto/rand"} }

// rooms is the table. A folder with Go code that is not in it does not exist yet: deciding where it stands is the point.
func rooms() map[string]room {
	const (
		hash       = "github.com/cespare/xxhash/v2"
		prometheus = "github.com/prometheus/client_golang/prometheus"
	)
	return map[string]room{
		"route": {outside: []string{hash}, std: append(impure(), "sync"),
			why: "the decision is pure: everything it depends on is a field of View, or replay and simulation are fiction"},
		"prefix": {outside: []string{hash}, std: impure(),
			why: "the index is a data structure: it knows no time, no network and no chance"},
		"openai": {outside: []string{hash, "github.com/klauspost/compress", "github.com/andybalholm/brotli"},
			why: "the wire is read by whoever carries requests, so it depends on no other room"},
		"fleet": {own: []string{"route", "prefix"}, why: "the fleet is fed by others and asks nobody"},
		"scrape": {own: []string{"fleet", "prefix"}, outside: []string{prometheus},
			why: "a scrape makes readings and knows nothing of requests"},
		"front": {own: []string{"fleet", "openai", "route"}, outside: []string{prometheus},
			why: "what the front doors share knows none of them, nor how a request travels; configuration reaches it as values"},
		"proxy": {own: []string{"fleet", "front", "openai", "route"}, outside: []string{prometheus},
			why: "a front door carries requests; configuration reaches it as values"},
		"peer": {own: []string{"fleet"}, outside: []string{prometheus, "google.golang.org/grpc", "google.golang.org/protobuf"},
			why: "peers tell each other what the fleet does, and know nothing of requests"},
		"envoy": {own: []string{"fleet", "front", "openai"},
			outside: []string{"github.com/envoyproxy/go-control-plane", "google.golang.org/grpc", "google.golang.org/protobuf", "sigs.k8s.io/yaml"},
			why:     "Envoy's configuration is made from values: it knows no documents and no requests"},
		"extproc": {own: []string{"fleet", "front", "openai", "route"}, outside: []string{prometheus, "google.golang.org/grpc", "google.golang.org/protobuf"},
			why: "a front door carries requests; configuration reaches it as values"},
		"config": {own: []string{"api/v1alpha1", "api/v1alpha2", "route"},
			outside: []string{"k8s.io/api", "k8s.io/apimachinery", "sigs.k8s.io/yaml", "sigs.k8s.io/json", "go.yaml.in/yaml/v2"},
			why:     "configuration is turned into values here, by someone who runs nothing"},
		"api/v1alpha1": {outside: []string{"k8s.io/api", "k8s.io/apimachinery"},
			why: "types of documents, and nothing that acts on them"},
		"api/v1alpha2": {outside: []string{"k8s.io/apimachinery"},
			why: "types of documents, and nothing that acts on them"},
		"translate": {own: []string{"api/v1alpha1", "api/v1alpha2"}, std: append(impure(), "sync"),
			outside: []string{"k8s.io/api", "k8s.io/apimachinery", "sigs.k8s.io/gateway-api", "sigs.k8s.io/gateway-api-inference-extension", "sigs.k8s.io/yaml"},
			why:     "a plan is pure: what it depends on is the document and its Context, or golden pairs prove nothing"},
		"kube": {own: []string{"api/v1alpha1", "api/v1alpha2", "config", "envoy", "translate"},
			outside: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/go-logr/logr",
				"sigs.k8s.io/gateway-api", "sigs.k8s.io/gateway-api-inference-extension", "sigs.k8s.io/yaml",
				"github.com/envoyproxy/go-control-plane", "google.golang.org/grpc", "google.golang.org/protobuf", prometheus},
			why: "what an API server says and is told passes here alone, and means what config and translate make of it"},
		"console": {own: []string{"fleet", "route"},
			why: "the page shows what others know, and needs nothing but the standard library to be served"},
		"sim": {own: []string{"fleet", "openai", "prefix", "route"}, outside: []string{"github.com/go-zeromq/zmq4", "github.com/vmihailenco/msgpack/v5"},
			why: "a simulation drives the gateway's own code, and is no part of how requests travel"},
		"cmd/sluice": {own: []string{everything}, outside: []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term", "gonum.org/v1/plot", "google.golang.org/grpc", prometheus},
			why: "the commands compose the rooms, which bring what they need"},
		"internal/arch":  {why: "the tests of the shape must not bend with it"},
		"e2e":            {why: "it drives the binary from outside, as a user does"},
		"test/apiserver": {why: "it asks an API server what it makes of the definitions, as a user's manifests do"},
	}
}

// checkArrows holds the imports to the table.
func checkArrows(t *tree) []string {
	var out []string
	table := rooms()
	for _, dir := range t.rooms() {
		if _, ok := table[dir]; !ok {
			out = append(out, fmt.Sprintf("%s: is not in the table of rooms: say there what it may import, and in ARCHITECTURE.md what it is for", dir))
		}
	}
	for _, s := range t.imports() {
		r, known := table[s.dir]
		for _, spec := range s.ast.Imports {
			at, p := t.at(spec), importPath(spec)
			if dir, ok := own(p); ok && within(dir, "cmd") {
				out = append(out, fmt.Sprintf("%s: imports %s: nothing may import cmd, which composes everything else", at, dir))
			}
			if s.test || !known {
				continue
			}
			if reason := r.forbids(s.dir, p); reason != "" {
				out = append(out, fmt.Sprintf("%s: %s must not import %s: %s", at, s.dir, p, reason))
			}
		}
	}
	return out
}

// forbids says why code of the room dir must not import p, or nothing.
func (r *room) forbids(dir, p string) string {
	if to, ok := own(p); ok {
		if slices.Contains(r.own, everything) || slices.Contains(r.own, to) || within(to, "cmd") {
			return ""
		}
		return r.why
	}
	if first, _, _ := strings.Cut(p, "/"); !strings.Contains(first, ".") {
		if slices.ContainsFunc(r.std, func(below string) bool { return within(p, below) }) {
			return r.why
		}
		return ""
	}
	if !slices.ContainsFunc(r.outside, func(below string) bool { return within(p, below) }) {
		return r.why + "; and a new dependency is a decision (docs/decisions/0008)"
	}
	return ""
}

// within reports whether p is below or something under it.
func within(p, below string) bool {
	return p == below || strings.HasPrefix(p, below+"/")
}
