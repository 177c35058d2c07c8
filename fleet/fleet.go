// Package fleet holds what a process knows about the endpoints it can send to: pools, their current snapshots, and the
// live bookkeeping of what was sent where. It is the only writer of snapshots and the only caller of the decision in
// production.
//
// It promises that choosing an endpoint and counting the request there are one step, that every counter a request
// raises is lowered exactly once whatever becomes of it, and that looking up a model takes no lock. It reads no clock:
// every method takes the time as a duration since an origin that its owner chooses, so that a simulation and a replay
// drive the very same code.
package fleet

import (
	"crypto/tls"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/route"
)

// Endpoint says how to reach one endpoint. It is a value that does not change; a change of any field makes another
// endpoint as far as connections are concerned, but live bookkeeping goes by Name.
type Endpoint struct {
	// Name is the address that is dialled, "10.0.0.1:8000" or "[fd00::1]:8000", followed by "@" and the rank where Ranks is
	// not 0. It is unique in a pool.
	Name string
	// Host is what the configuration calls it, sent as the Host header; equal to Name for literal addresses.
	Host string
	// Pod is the name of the pod that it is, empty where there are none. UID is that pod's: another one at the same address is
	// another endpoint, of which nothing is known.
	Pod, UID string
	// Labels are the configured ones; LabelGPU names the GPU kind.
	Labels map[string]string
	// Drain takes the endpoint out of traffic; requests it has go on.
	Drain bool
	// Engine is the configured engine name, empty to find it by asking.
	Engine string
	// MetricsPort and MetricsPath say where readings come from; 0 and empty mean the serving port and /metrics.
	MetricsPort int
	MetricsPath string
	// KVEvents says where the engine publishes what its KV cache holds.
	KVEvents KVEvents
	// Ranks is how many data-parallel ranks answer at the address, 0 where the engine spreads requests over them itself, if
	// it has any. FirstRank is the number of the first of them, and Rank that of this endpoint.
	Ranks, FirstRank, Rank int
	// TLS, when not nil, means https with these settings. Its ServerName is set: Name is an address, and certificates
	// name hosts.
	TLS *tls.Config
	// H2C means HTTP/2 without TLS.
	H2C bool
	// APIKey is sent to the engine as a bearer token, empty for none. It must never be logged.
	APIKey string `json:"-"`
}

// KVEvents says where an engine publishes what its KV cache holds. Each rank's ports are these plus the rank.
type KVEvents struct {
	// Port is 0 where nothing is published, ReplayPort where nothing is given again.
	Port, ReplayPort int
	// Topic is what the topics of messages begin with.
	Topic string
	// HashSeed is the engine's PYTHONHASHSEED, empty where one of the usual ones is expected.
	HashSeed string
}

// Address is what is dialled: the name less the rank. Several endpoints may share it.
func (e *Endpoint) Address() string {
	address, _, _ := strings.Cut(e.Name, "@")
	return address
}

// LabelGPU and LabelNvidiaGPU are the labels that name the GPU kind of an endpoint, the first one winning.
const (
	LabelGPU       = "gpu"
	LabelNvidiaGPU = "nvidia.com/gpu.product"
)

// LabelTP is the label that says how many GPUs share the model (tensor parallelism).
const LabelTP = "tp"

// tp is the labelled parallelism, 0 when no label says it.
func (e *Endpoint) tp() int {
	text := e.Labels[LabelTP]
	if text == "" { // an error is no cheap answer for a thousand endpoints
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// GPU is the labelled GPU kind, empty when no label says it.
func (e *Endpoint) GPU() string {
	if gpu := e.Labels[LabelGPU]; gpu != "" {
		return gpu
	}
	return e.Labels[LabelNvidiaGPU]
}

// Model is one entry of what an engine lists under /v1/models.
type Model struct {
	ID string
	// Parent is the base model of an adapter, empty for a base model.
	Parent string
	// Raw is the engine's own JSON object, passed on to clients as it is.
	Raw json.RawMessage
}

// Fleet is all pools that a process can route to. Its zero value is an empty fleet.
type Fleet struct {
	mu    sync.Mutex
	pools []*Pool
	// fallback gets what names no known model; nil for none.
	fallback *Pool
	tell     func(pool string, n *Note)
	stored   stored
	changes  atomic.Uint64
	table    atomic.Pointer[table]
}

// table is the immutable answer to "who serves this name".
type table struct {
	targets  map[string]Target
	pools    []*Pool
	fallback *Pool
}

// Target is a pool, and the adapter in it when the name is an adapter's.
type Target struct {
	Pool    *Pool
	Adapter string
}

// Apply makes the fleet hold exactly these pools, in this order; fallback (may be nil) is one of them. Pools that the
// fleet holds already, by Name, keep their bookkeeping and take over the new settings and endpoints. Requests in flight
// at a pool that is gone end as they would have.
func (f *Fleet) Apply(configs []PoolConfig, fallback string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := make(map[string]*Pool)
	for _, p := range f.pools {
		old[p.Name()] = p
	}
	f.pools, f.fallback = nil, nil
	for _, c := range configs {
		p := old[c.Name]
		if p == nil {
			p = NewPool(c.Name)
			p.onModels, p.changes = f.relist, &f.changes // before anyone else knows the pool
			f.share(p)
		}
		delete(old, c.Name)
		p.Apply(c)
		f.pools = append(f.pools, p)
		if c.Name == fallback && fallback != "" {
			f.fallback = p
		}
	}
	for _, gone := range old {
		gone.hush()
		gone.place(nil)
	}
	f.publish()
	f.changes.Add(1)
}

// relist renews the table after a pool found other models at its endpoints.
func (f *Fleet) relist() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publish()
}

// publish builds the table. A name goes to the pool whose configuration claims it as model, else as adapter, else to
// the first pool at whose endpoints it was found.
func (f *Fleet) publish() {
	t := &table{targets: make(map[string]Target), pools: slices.Clone(f.pools), fallback: f.fallback}
	claim := func(name string, target Target) {
		if _, taken := t.targets[name]; !taken && name != "" {
			t.targets[name] = target
		}
	}
	for _, p := range f.pools {
		claim(p.config().Model, Target{Pool: p})
	}
	for _, p := range f.pools {
		for _, a := range p.config().Adapters {
			claim(a, Target{Pool: p, Adapter: a})
		}
	}
	for _, p := range f.pools {
		for _, m := range p.Models() {
			target := Target{Pool: p}
			if m.Parent != "" {
				target.Adapter = m.ID
			}
			claim(m.ID, target)
		}
	}
	f.table.Store(t)
}

// Lookup finds who serves a model or adapter of this name, without taking a lock.
func (f *Fleet) Lookup(model string) (Target, bool) {
	t := f.table.Load()
	if t == nil {
		return Target{}, false
	}
	target, ok := t.targets[model]
	return target, ok
}

// Fallback is the pool for names that nobody serves, nil if there is none.
func (f *Fleet) Fallback() *Pool {
	if t := f.table.Load(); t != nil {
		return t.fallback
	}
	return nil
}

// Pools lists the pools in the order of the configuration.
func (f *Fleet) Pools() []*Pool {
	if t := f.table.Load(); t != nil {
		return t.pools
	}
	return nil
}

// Names lists every name that Lookup knows, sorted.
func (f *Fleet) Names() []string {
	t := f.table.Load()
	if t == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(t.targets))
}

// PoolConfig is what the configuration says about a pool.
type PoolConfig struct {
	// Name is unique in a fleet: the scheduler's name, or the model's where there is no scheduler.
	Name string
	// Model is the base model that the pool serves.
	Model string
	// Adapters are configured adapter names; those that endpoints list are added to them.
	Adapters []string
	// Profile decides; nil means route.Latency.
	Profile *route.Profile
	// StaleAfter is the age at which a reading is too old to route by; 0 means DefaultStaleAfter.
	StaleAfter time.Duration
	// StallAfter is how long an endpoint with requests in flight may show no progress; 0 means DefaultStallAfter.
	StallAfter time.Duration
	// Session says what sessions are worth; nil means nothing.
	Session *SessionConfig
	// Endpoints are the resolved addresses.
	Endpoints []Endpoint
	// Engine is the engine that the configuration expects, empty for any.
	Engine string
}

// Defaults of PoolConfig.
const (
	DefaultStaleAfter = 2 * time.Second
	DefaultStallAfter = 60 * time.Second
)
