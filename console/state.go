package console

import (
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/route"
)

// maxTiles bounds the endpoints of a pool that are shown; beyond it those in trouble come first.
const maxTiles = 200

// typicalTokens stands for the uncached tokens of a typical prompt while no decision of the pool is known.
const typicalTokens = 512

// state is the JSON of /console/state.
type state struct {
	// Window is the number of points in a series, one a second; Spread the seconds that each is made of.
	Window int         `json:"window"`
	Spread int         `json:"spread"`
	Sides  []sideState `json:"sides"`
}

type sideState struct {
	Name   string      `json:"name"`
	Series *points     `json:"series"`
	Peers  []Peer      `json:"peers"`
	Pools  []poolState `json:"pools"`
}

type poolState struct {
	Name    string `json:"name"`
	Model   string `json:"model"`
	Profile string `json:"profile"`
	// TypicalTokens are the uncached prompt tokens that predictions are for; Measured says that they are the pool's
	// mean.
	TypicalTokens figure `json:"typicalTokens"`
	Measured      bool   `json:"measured"`
	// Guarded says that weights decide for the moment, since hits have fallen while the backlog rose.
	Guarded bool `json:"guarded"`
	// Kinds are those that endpoints belong to, in the order in which the endpoints stand.
	Kinds []kindState `json:"kinds"`
	// Omitted is how many endpoints are not in the list.
	Omitted   int            `json:"omitted"`
	Endpoints []endpointTile `json:"endpoints"`
}

// kindState is what was learned of the endpoints of a kind.
type kindState struct {
	Name      string `json:"name"`
	Endpoints int    `json:"endpoints"`
	// Source names the row of the calibration table that its steps' shape is from, empty for the shape that stands for any;
	// Prefill and Decode are the learned factors on it, of prompts and of output.
	Source  string `json:"source"`
	Prefill figure `json:"prefill"`
	Decode  figure `json:"decode"`
}

type endpointTile struct {
	Name string `json:"name"`
	Host string `json:"host"`
	// Pod is the pod's name, empty where it is no pod.
	Pod    string `json:"pod"`
	Engine string `json:"engine"`
	Kind   string `json:"kind"`
	State  string `json:"state"`
	Why    string `json:"why"`
	// Running and Waiting are the engine's, null where it doesn't say; InFlight is counted here.
	Running  figure `json:"running"`
	Waiting  figure `json:"waiting"`
	InFlight int    `json:"inFlight"`
	KVUse    figure `json:"kvUse"`
	// Cached is the share of prompt tokens that the engine took from its cache in the last two minutes.
	Cached figure `json:"cached"`
	// TTFT is the predicted time to first token of a typical request in milliseconds.
	TTFT figure `json:"ttft"`
	// Errors is the share of the latest requests that it failed.
	Errors figure `json:"errors"`
	// Slower is how many times slower than the others of its kind it is, 0 where that is not much.
	Slower figure `json:"slower"`
	// Events is null where the endpoint publishes no KV events.
	Events *Events `json:"events"`
	// Resident and WaitingForSlot are adapters with a slot, and with requests and none; Loading is milliseconds until those under way are loaded.
	Resident       []string `json:"resident"`
	WaitingForSlot []string `json:"waitingForSlot"`
	Loading        figure   `json:"loading"`
}

func (s *site) serveState(w http.ResponseWriter, _ *http.Request) {
	now := s.now()
	out := state{Window: window, Spread: spread, Sides: []sideState{}}
	for i := range s.sides {
		out.Sides = append(out.Sides, s.sides[i].state(now))
	}
	reply(w, out)
}

func (s *Side) state(now time.Duration) sideState {
	out := sideState{Name: s.Name, Pools: []poolState{}}
	var shares map[string]float64
	if s.Series != nil {
		var p points
		p, shares = s.Series.window(now)
		out.Series = &p
	}
	var records []*route.Record
	if s.Records != nil {
		records = s.Records(maxRequests)
	}
	for _, p := range s.Fleet.Pools() {
		out.Pools = append(out.Pools, s.statusOf(p, now, records, shares))
	}
	if out.Peers = []Peer{}; s.Peers != nil {
		out.Peers = append(out.Peers, s.Peers()...)
	}
	return out
}

func (s *Side) statusOf(p *fleet.Pool, now time.Duration, records []*route.Record, shares map[string]float64) poolState {
	c := p.Config()
	out := poolState{Name: p.Name(), Model: c.Model, Profile: c.Profile.Name, TypicalTokens: typicalTokens, Guarded: p.Affinity().Guarded, Kinds: []kindState{}, Endpoints: []endpointTile{}}
	var output float32
	for _, r := range records {
		if r.Pool == p.Name() && r.View.MeanUncached > 0 {
			out.TypicalTokens, out.Measured, output = figure(r.View.MeanUncached), true, r.View.MeanOutput
			break
		}
	}
	all := p.Status(now)
	predicted := predict(all, float32(out.TypicalTokens), output)
	for i := range all {
		e := &all[i]
		share, ok := shares[e.Endpoint.Name]
		if !ok {
			share = math.NaN()
		}
		out.Kinds = countKind(out.Kinds, e)
		t := endpointTile{Name: e.Endpoint.Name, Host: e.Endpoint.Host, Pod: e.Endpoint.Pod, Engine: e.Engine, Kind: e.Kind, State: e.State, Why: e.Why,
			Running: figure(e.Reading.Running), Waiting: figure(e.Reading.Waiting), InFlight: e.InFlight, KVUse: figure(e.Reading.KVUse),
			Cached: figure(share), TTFT: figure(predicted[i]), Errors: figure(e.Errors), Slower: figure(e.Slower)}
		if s.Events != nil {
			t.Events = s.Events(p.Name(), e)
		}
		a := p.Adapters(now, e.Endpoint.Name)
		t.Resident, t.WaitingForSlot, t.Loading = atMost(a.Resident), atMost(a.Waiting), figure(a.Loading.Seconds()*1000)
		if e.State == "draining" || e.State == "not ready" {
			t.TTFT = figure(math.NaN()) // nothing is sent there
		}
		out.Endpoints = append(out.Endpoints, t)
	}
	if out.Omitted = len(all) - maxTiles; out.Omitted > 0 {
		slices.SortStableFunc(out.Endpoints, func(a, b endpointTile) int { return calm(a.State) - calm(b.State) })
		out.Endpoints = out.Endpoints[:maxTiles]
	}
	out.Omitted = max(out.Omitted, 0)
	return out
}

// countKind counts an endpoint's kind.
func countKind(kinds []kindState, e *fleet.Status) []kindState {
	i := slices.IndexFunc(kinds, func(k kindState) bool { return k.Name == e.Kind && k.Source == e.Rate.Source })
	if i < 0 {
		i = len(kinds)
		kinds = append(kinds, kindState{Name: e.Kind, Source: e.Rate.Source, Prefill: figure(e.Rate.Prefill), Decode: figure(e.Rate.Decode)})
	}
	kinds[i].Endpoints++
	return kinds
}

// atMost is names, as far as a tile has room for them.
func atMost(names []string) []string {
	const most = 32
	return append([]string{}, names[:min(len(names), most)]...)
}

// calm orders states: those in trouble first.
func calm(state string) int {
	if state == "ready" {
		return 1
	}
	return 0
}

// predict returns each endpoint's time to first token, in milliseconds, of a request with that many uncached prompt
// tokens, by the rule that decides by latency: the wait, the prefill, its step, and the wait for room in the KV cache. Nobody is
// left out: whether an endpoint may serve is another question.
func predict(all []fleet.Status, prompt, output float32) []float64 {
	n := len(all)
	s := &route.Snapshot{Names: make([]string, n), Hashes: make([]uint64, n), States: make([]route.State, n), Why: make([]string, n),
		Kinds: make([]int32, n), ReadAt: make([]float64, n), Waiting: make(route.Column, n), Running: make(route.Column, n),
		KVUse: make(route.Column, n), KVTokens: make(route.Column, n)}
	v := &route.View{Snapshot: s, Request: route.Request{PromptTokens: max(prompt, 1), OutputTokens: output}, InFlight: make(route.Column, n),
		Prefilling: make(route.Column, n), Backlog: make(route.Column, n), Work: make(route.Column, n), Context: make(route.Column, n), Rates: make([]route.Rate, n), MeanUncached: prompt, MeanOutput: output}
	for i, e := range all {
		s.Names[i], s.Kinds[i], v.Rates[i] = e.Endpoint.Name, int32(i), e.Rate
		s.Waiting[i], s.Running[i] = float32(e.Reading.Waiting), float32(e.Reading.Running)
		s.KVUse[i], s.KVTokens[i] = float32(e.Reading.KVUse), float32(e.Reading.KVTokens)
		v.InFlight[i], v.Prefilling[i], v.Backlog[i] = float32(e.InFlight), float32(e.Prefilling), float32(e.BacklogTokens)
		v.Work[i], v.Context[i] = float32(e.WorkMS), float32(e.ContextTokens)
	}
	out := make([]float64, n)
	if n == 0 {
		return out
	}
	for _, t := range route.Latency().Explain(v).Terms {
		if t.Name == termDecode {
			continue
		}
		for i, ms := range t.Values {
			out[i] += float64(ms)
		}
	}
	return out
}
