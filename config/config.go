// Package config turns what a person wrote, documents or flags, into what a gateway runs: which models there are, which
// endpoints serve each, and by what rule one is picked.
//
// It promises three things. Every fault of every document is reported at once, with the document, the field, the value
// and what is allowed, in the grammar an API server uses, so that a document answers the same in a cluster and on a
// laptop. Nothing is ignored in silence: what this process cannot do with a setting is listed by name in
// Config.NotHonoured, and where going on would mean serving by other rules than asked, the notice is fatal. And the
// result holds plain Go values only, so that what runs it needs to know nothing of Kubernetes.
//
// It refuses to do I/O: it opens no key or certificate file, resolves no name and asks no engine anything.
package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Config is what one gateway process runs. It is a value: nothing in it changes after Parse or FromFlags has returned
// it.
type Config struct {
	// Source says where the configuration came from, for messages.
	Source string
	// Name is the metadata.name of the InferenceGatewayConfig; empty from flags.
	Name string
	// SelectModel: the body's model chooses the pool. Otherwise there is exactly one pool and it gets everything,
	// whatever the body names.
	SelectModel bool
	// Pools stand in the order of the schedulers. Where two claim one adapter the first is meant; a Warning says so.
	Pools []Pool
	// Default receives what names no model of any pool; nil answers that with 404. It has one endpoint, no Scheduler
	// and no Model.
	Default *Pool
	// JWT says what tokens clients must have; nil: none were asked for.
	JWT *JWT
	// TLS: clients were promised https.
	TLS bool
	// Envoy: it is Envoy that meets the clients, see BehindEnvoy.
	Envoy bool
	// Rewrites are rules for names, those that count before others first.
	Rewrites []Rewrite
	// Objectives are the priorities that requests may name, no two of a pool by one name.
	Objectives []Objective
	// MaxBodyBytes is the longest request body taken in. Never 0.
	MaxBodyBytes int64
	// NotHonoured lists, in document order, every setting that has no effect here.
	NotHonoured []Notice
	// Warnings lists what is allowed and probably not meant.
	Warnings []Notice
}

// Pool is one model, the endpoints that serve it and how one of them is picked.
type Pool struct {
	// Scheduler is the name of the entry in spec.schedulers, unique over pools. From flags it is made from the model's
	// name.
	Scheduler string
	// Model is compared with the body's model, byte for byte.
	Model string
	// Adapters are further names that mean this pool; each is in one pool only and is no pool's Model.
	Adapters []string
	// Selector is the label selector as text, for people. Empty from flags.
	Selector string
	// Endpoints may be empty: a selector that matches nothing is no fault.
	Endpoints []Endpoint
	// Weights by scorer name, all of them of route.ScorerNames; nil asks for the latency profile. A scorer that isn't
	// there has no weight.
	Weights map[string]float64
	// Session says how sessions are told; nil: they are not.
	Session *Session
	// ConfigMap names the picker configuration that the document asks for. It is never read here; where it is set, a
	// fatal notice says so.
	ConfigMap string
	// AppProtocol is how endpoints without TLS are spoken to.
	AppProtocol Protocol
	// EngineType is the engine to assume where an endpoint names none and does not tell when asked; empty from flags.
	EngineType string
	// RouteTimeout bounds a whole request, from its first byte in to its last byte out. nil: nothing was asked for;
	// zero: a bound was asked not to be.
	RouteTimeout *time.Duration
}

// Protocol is how endpoints without TLS are spoken to.
type Protocol string

// The protocols: HTTP/1.1, and HTTP/2 without TLS and with prior knowledge.
const (
	HTTP Protocol = "http"
	H2C  Protocol = "h2c"
)

// Endpoint is one address of a pool. A name that resolves to several IP addresses stands for that many endpoints;
// resolving, again and again, is the caller's work.
type Endpoint struct {
	// Address is an IP address in its shortest form, without brackets, or a host name.
	Address string
	// Port is 1 to 65535.
	Port int
	// Labels are the entry's own over those of its document. Not to be written to.
	Labels map[string]string
	// Drain: no new requests, those under way may finish.
	Drain bool
	// Engine is what the entry names, or what its scheduler names in so many words; empty means that the engine is to
	// be asked.
	Engine string
	// MetricsPath and MetricsPort are empty and 0 where the engine's own hold.
	MetricsPath string
	MetricsPort int
	// KVEvents says where the engine publishes what its KV cache holds; a Port of 0 means nowhere.
	KVEvents KVEvents
	// Ranks is how many data-parallel ranks the address has, each an endpoint of its own; 0 where they are the engine's own
	// matter. FirstRank is the number of the first.
	Ranks, FirstRank int
	// TLS is nil for plain text.
	TLS *TLS
	// APIKey is the zero value where no key is sent.
	APIKey APIKey
	// Pod is the name of the pod that it is, UID that one's; empty for an entry of Endpoints.
	Pod, UID string
	// GPU is the kind of GPU where no label says it; empty if unknown.
	GPU string
}

// HostPort returns the address to dial, with an IPv6 address in brackets.
func (e Endpoint) HostPort() string {
	return net.JoinHostPort(e.Address, strconv.Itoa(e.Port))
}

// KVEvents says where an engine publishes what its KV cache holds. Each data-parallel rank's ports are these plus the
// rank's number; a port of 0 means that there is none.
type KVEvents struct {
	Port, ReplayPort int
	// Topic is what the topics of messages begin with.
	Topic string
	// HashSeed is the engine's PYTHONHASHSEED, empty where one of the usual ones is expected.
	HashSeed string
}

// TLS says how an endpoint's certificate is checked. The zero value checks against the system's authorities and the
// endpoint's address.
type TLS struct {
	CAFile             string
	ServerName         string
	InsecureSkipVerify bool
}

// APIKey says where the bearer token for an endpoint is kept: at most one of the two is set. The key itself is never
// part of a configuration.
type APIKey struct {
	Env  string
	File string
}

// Notice is something a person should know about a valid configuration.
type Notice struct {
	// Object names the document, such as `Endpoints "lab"`; empty from flags.
	Object string
	// Path is the field, such as spec.schedulers[0].replicas; empty from flags.
	Path string
	// Value is what the field holds, shortened; empty where it would say nothing or might hold a secret.
	Value string
	// Why says what happens instead, and what to do.
	Why string
	// Fatal: serving would break a promise the document makes. Only checking and explaining may go on.
	Fatal bool
	// Embedded: it holds where the gateway meets its clients itself. BehindEnvoy says what holds otherwise.
	Embedded bool
}

// JWT says what tokens clients must have, and who signs them.
type JWT struct {
	// Provider names the signer to people. Issuer is what a token has as iss, and JWKSURI, by https, where its keys are.
	Provider, Issuer, JWKSURI string
	// Audiences: a token must be meant for one of them; empty for any.
	Audiences []string
	// Claims: a token must satisfy each of them.
	Claims []Claim
}

// Claim is a claim and the values of which it must have one; with List, it is a list that must hold one.
type Claim struct {
	Name   string
	List   bool
	Values []string
}

// String is the notice on one line.
func (n Notice) String() string {
	parts := make([]string, 0, 4)
	for _, p := range []string{n.Object, n.Path, n.Value, n.Why} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, ": ")
}

// BehindEnvoy is the configuration as it holds where Envoy meets the clients: it checks tokens, and ends TLS where it is
// given a certificate.
func (c *Config) BehindEnvoy(certificate bool) *Config {
	behind := *c
	behind.Envoy, behind.NotHonoured = true, nil
	for _, n := range c.NotHonoured {
		switch {
		case !n.Embedded:
		case n.Path == pathTLS && !certificate:
			n.Why = "certificates of ACM and cert-manager exist in a cluster only, and clients that were promised https would speak plain text: give a certificate with --tls-cert and --tls-key, or remove spec.tls and end TLS in front"
		case n.Path == pathTLS:
			n.Why, n.Fatal = "certificates of ACM and cert-manager exist in a cluster only: Envoy has the one it was given", false
		default:
			continue
		}
		behind.NotHonoured = append(behind.NotHonoured, n)
	}
	return &behind
}

// Refusal returns nil where the configuration may be served, and otherwise an error that names every setting that
// forbids it.
func (c *Config) Refusal() error {
	var lines []string
	for _, n := range c.NotHonoured {
		if n.Fatal {
			lines = append(lines, n.String())
		}
	}
	if lines == nil {
		return nil
	}
	return fmt.Errorf("cannot serve %q: %s", c.Source, strings.Join(lines, "; "))
}
