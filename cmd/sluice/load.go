package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/route"
)

// fallbackPool is the name of the pool of bbr.defaultBackend.
const fallbackPool = v1alpha1.DefaultBackendPool

// source is where the configuration comes from: a file or --endpoint flags.
type source struct {
	file      string
	endpoints []string
	// kvEvents and kvReplay are the ports of the KV events of endpoints from flags, 0 for none.
	kvEvents, kvReplay int
	// made is a configuration that no file and no flag gives, nil for none.
	made *config.Config
}

// parse reads and validates the configuration.
func (s source) parse() (*config.Config, []byte, error) {
	switch {
	case s.made != nil:
		return s.made, nil, nil
	case s.file != "" && len(s.endpoints) > 0:
		return nil, nil, errors.New("give either --file or --endpoint, not both: a file lists endpoints in documents of kind Endpoints")
	case s.file != "":
		text, err := os.ReadFile(s.file)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot read configuration: %w", err)
		}
		c, err := config.Parse(text, s.file)
		return c, text, err
	case len(s.endpoints) > 0:
		events, err := s.events()
		if err != nil {
			return nil, nil, err
		}
		c, err := config.FromFlags(s.endpoints, events)
		return c, nil, err
	}
	return nil, nil, errors.New("nothing to serve: name model servers with --endpoint MODEL=HOST:PORT, or give a configuration with -f FILE")
}

// addEventFlags adds the flags of KV events.
func (s *source) addEventFlags(f *pflag.FlagSet) {
	f.IntVar(&s.kvEvents, "kv-events-port", 0, "`PORT` at which the --endpoint servers publish what their KV caches hold (0: they don't; see docs/operating.md)")
	f.IntVar(&s.kvReplay, "kv-replay-port", 0, "`PORT` at which they give KV events again (0: they don't)")
}

// events are the ports of KV events of endpoints from flags.
func (s source) events() (config.KVEvents, error) {
	e := config.KVEvents{Port: s.kvEvents, ReplayPort: s.kvReplay}
	switch {
	case s.kvEvents < 0 || s.kvEvents > 65535 || s.kvReplay < 0 || s.kvReplay > 65535:
		return e, fmt.Errorf("cannot use --kv-events-port %d or --kv-replay-port %d: a port is 1 to 65535, 0 for none", s.kvEvents, s.kvReplay)
	case s.kvReplay != 0 && s.kvEvents == 0:
		return e, errors.New("cannot use --kv-replay-port alone: what is given again are the messages of --kv-events-port")
	case s.kvReplay != 0 && s.kvReplay == s.kvEvents:
		return e, errors.New("cannot use one port as --kv-events-port and --kv-replay-port: an engine has two sockets for them")
	}
	return e, nil
}

// plan is a configuration made ready to run: secrets read, certificates parsed, profiles made. Endpoints are not resolved yet.
type plan struct {
	config *config.Config
	// docs are what it is made of where there are pods besides, and podsKnown says that they were known then.
	docs      *config.Documents
	podsKnown bool

	pools    []fleet.PoolConfig
	fallback string
	timeouts map[string]time.Duration
	sessions map[string]front.SessionSource
	rewrites []front.Rewrite
	// objectives are the priorities that requests may name.
	objectives []front.Objective
	// files are the key and certificate files it was made from, with their contents' hashes: a changed one is a changed configuration.
	files map[string][sha256.Size]byte
}

// read reads a file that the plan depends on.
func (p *plan) read(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err == nil {
		p.files[path] = sha256.Sum256(text)
	}
	return text, err
}

// outdated reports whether a file that the plan was made from has other contents now. One that cannot be read at the moment is being replaced,
// and counts as unchanged.
func (p *plan) outdated() bool {
	for path, sum := range p.files {
		if text, err := os.ReadFile(path); err == nil && sha256.Sum256(text) != sum {
			return true
		}
	}
	return false
}

// tlsCache makes equal TLS settings the same pointer across reloads, so that a reload that changes nothing there keeps connections.
type tlsCache map[string]*tls.Config

// prepare turns a configuration into a plan. All faults are reported at once, and nothing has been applied when there is one.
func prepare(c *config.Config, o *gatewayOptions, cache tlsCache) (*plan, error) {
	p := &plan{config: c, timeouts: make(map[string]time.Duration), sessions: make(map[string]front.SessionSource), files: make(map[string][sha256.Size]byte)}
	p.rewrites = rewrites(c.Rewrites)
	for _, o := range c.Objectives {
		p.objectives = append(p.objectives, front.Objective{Name: o.Name, Pool: o.Scheduler, Priority: o.Priority})
	}
	all := c.Pools
	if c.Default != nil {
		d := *c.Default
		d.Scheduler = fallbackPool
		all = append(all[:len(all):len(all)], d)
		p.fallback = fallbackPool
	}
	var faults []error
	for _, pool := range all {
		pc, err := p.pool(&pool, o, cache)
		faults = append(faults, err)
		p.pools = append(p.pools, pc)
		if pool.RouteTimeout != nil {
			p.timeouts[pc.Name] = *pool.RouteTimeout
		}
	}
	return p, errors.Join(faults...)
}

// rewrites are the rules in the words of the front doors, to which a scheduler is a pool.
func rewrites(list []config.Rewrite) []front.Rewrite {
	var out []front.Rewrite
	for _, w := range list {
		made := front.Rewrite{Name: w.Name, Pool: w.Scheduler}
		for _, r := range w.Rules {
			rule := front.RewriteRule{Models: r.Models}
			for _, t := range r.Targets {
				rule.Targets = append(rule.Targets, front.RewriteTarget(t))
			}
			made.Rules = append(made.Rules, rule)
		}
		out = append(out, made)
	}
	return out
}

func (p *plan) pool(pool *config.Pool, o *gatewayOptions, cache tlsCache) (fleet.PoolConfig, error) {
	pc := fleet.PoolConfig{Name: pool.Scheduler, Model: pool.Model, Adapters: pool.Adapters, StaleAfter: o.staleAfter,
		StallAfter: o.stallAfter}
	name := o.profile
	if name == "" {
		name = "latency"
		if pool.Weights != nil {
			name = "weights"
		}
	}
	session := pool.Session
	if session == nil && (o.sessionHeader != "" || o.sessionCookie != "") {
		s := config.DefaultSession()
		s.Header, s.Cookie = o.sessionHeader, o.sessionCookie
		session = &s
	}
	if session != nil {
		pc.Session = &fleet.SessionConfig{Cost: session.Cost, TTL: session.TTL}
		p.sessions[pc.Name] = front.SessionSource{Header: session.Header, Cookie: session.Cookie}
	}
	profile, err := route.Named(name, pool.Weights)
	faults := []error{err}
	pc.Profile = profile
	for _, e := range pool.Endpoints {
		fe, err := p.endpoint(&e, pool, cache)
		faults = append(faults, err)
		pc.Endpoints = append(pc.Endpoints, fe)
	}
	return pc, errors.Join(faults...)
}

func (p *plan) endpoint(e *config.Endpoint, pool *config.Pool, cache tlsCache) (fleet.Endpoint, error) {
	fe := fleet.Endpoint{Host: e.HostPort(), Pod: e.Pod, UID: e.UID, Labels: labelled(e), Drain: e.Drain, Engine: e.Engine,
		MetricsPort: e.MetricsPort, MetricsPath: e.MetricsPath, KVEvents: fleet.KVEvents(e.KVEvents), Ranks: e.Ranks, FirstRank: e.FirstRank, H2C: e.TLS == nil && pool.AppProtocol == config.H2C}
	key, err := p.key(e.APIKey)
	if err != nil {
		return fe, fmt.Errorf("cannot use endpoint %q: %w", fe.Host, err)
	}
	fe.APIKey = key
	if e.TLS != nil {
		if fe.TLS, err = p.tls(e, cache); err != nil {
			return fe, fmt.Errorf("cannot use endpoint %q: %w", fe.Host, err)
		}
	}
	return fe, nil
}

// labelled are an endpoint's labels, with one for the kind of GPU where that is known otherwise.
func labelled(e *config.Endpoint) map[string]string {
	if e.GPU == "" {
		return e.Labels
	}
	labels := map[string]string{fleet.LabelGPU: e.GPU}
	maps.Copy(labels, e.Labels)
	return labels
}

// key reads the bearer token for an engine. An empty one is a fault: sending none where one was asked for would fail later and elsewhere.
func (p *plan) key(k config.APIKey) (string, error) {
	switch {
	case k.Env != "":
		if key := os.Getenv(k.Env); key != "" {
			return key, nil
		}
		return "", fmt.Errorf("apiKey: the environment variable %s is empty or not set", k.Env)
	case k.File != "":
		text, err := p.read(k.File)
		if err != nil {
			return "", fmt.Errorf("apiKey: %w", err)
		}
		key := strings.TrimSpace(string(text))
		if key == "" {
			return "", fmt.Errorf("apiKey: the file %s is empty", k.File)
		}
		return key, nil
	}
	return "", nil
}

// tls makes the settings to reach an endpoint by https.
func (p *plan) tls(e *config.Endpoint, cache tlsCache) (*tls.Config, error) {
	t := e.TLS
	name := t.ServerName
	if name == "" {
		name = e.Address
	}
	var ca []byte
	if t.CAFile != "" {
		var err error
		if ca, err = p.read(t.CAFile); err != nil {
			return nil, fmt.Errorf("tls.caFile: %w", err)
		}
	}
	key := fmt.Sprintf("%s %t %x", name, t.InsecureSkipVerify, sha256.Sum256(ca))
	if c := cache[key]; c != nil {
		return c, nil
	}
	c := &tls.Config{ServerName: name, InsecureSkipVerify: t.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("tls.caFile: %s holds no PEM certificate", t.CAFile)
		}
	}
	cache[key] = c
	return c, nil
}
