package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// Options describe a world. They are not changed by Run, so that several worlds may share them.
type Options struct {
	// Engines are the endpoints of the one pool.
	Engines []EngineConfig
	// Labels gives the endpoints their GPU labels; without, a gateway has to tell the kinds apart by itself.
	Labels bool
	// Requests is the workload; those that follow none in order of arrival.
	Requests []Request
	// Concurrency makes the workload a closed loop, if not 0: so many of the requests that follow none are under way at
	// all times, the next one arriving when one ends, but not before its time.
	Concurrency int
	// Policy chooses the endpoints.
	Policy Policy
	// Replicas is how many gateways take turns at random; 0 means 1.
	Replicas int
	// Share has production's gateways tell each other what they do; without, they share nothing.
	Share bool
	// Scrape is the time between two readings of an endpoint, 0 means 50 ms. Each time differs by up to a tenth, at
	// random.
	Scrape time.Duration
	// Wire is the mean of the exponentially distributed delay with which a gateway hears of a token or an end, each on
	// its own, what concerns one request in its order. Of a step it hears by the first token to come of all its streams
	// there. Results are measured at the engine, so that it counts in no time to first token. 0 means that everything
	// is heard at once.
	Wire time.Duration
	// Warm is the time before which arrivals don't count, Until, if not 0, the time from which they don't. The world
	// goes on until the workload is finished, from Until on only until what counts is; at most to End.
	Warm, Until, End time.Duration
	// Faults happen to engines.
	Faults []Fault
	// Seed decides everything that is left to chance.
	Seed uint64
}

// FaultKind is a way an engine can fail.
type FaultKind uint8

const (
	// Slow makes steps take Value times as long; 1 ends it.
	Slow FaultKind = iota
	// Frozen stops the engine, its process still answers. Thawed ends it.
	Frozen
	// Thawed ends Frozen.
	Thawed
	// Crashed loses everything; with Value > 0 the engine serves again after so many seconds.
	Crashed
	// Blind takes the metrics page away; Sighted gives it back.
	Blind
	// Sighted ends Blind.
	Sighted
	// Emptied forgets all that the cache holds and nobody uses.
	Emptied
	// Failing answers so large a share of the requests as Value with an error at once; 0 ends it.
	Failing
	// Flooded gives the engine Value seconds of prompts that no gateway sent, and makes it forget what it held.
	Flooded
)

// Fault is something that happens to one engine.
type Fault struct {
	At       time.Duration
	Endpoint int
	Kind     FaultKind
	Value    float64
}

// world is a run in progress.
type world struct {
	o        *Options
	engines  []*Engine
	due      []time.Duration // when the engine's scheduled step ends
	began    []time.Duration // when that step began
	gateways []gateway
	streams  [][]int // by engine and gateway: requests between their first token and their end
	timers   timers
	rng      *rand.Rand
	now      time.Duration
	arrivals int
	open     int // requests that are due and have not ended
	waited   int // those that have arrived, count and have not ended
	flights  []*flight
	spare    []*flight
	after    map[int][]int // requests by the one they follow
	todo     map[int]func()
	failing  []float64 // the share of requests that each engine fails
	mail     []letters // by gateway
	shared   sharing
	result   Result
	// given is how many tokens all engines had given when the counting began and at its end.
	given [2]int64
}

// flight is a request on its way.
type flight struct {
	seq      Seq
	index    int
	request  *Request
	arrived  time.Duration
	first    time.Duration
	endpoint int
	gateway  gateway
	replica  int           // which of the gateways that is
	attempt  int           // how often it was sent
	heard    time.Duration // until when its gateway has been told
	lease    *fleet.Lease  // where the gateway is production's
	stream   int           // its place among the gateway's streams from the endpoint
	tried    []int
	hashes   []uint64
	owed     int     // prompt tokens that a policy counts until the first
	found    float64 // requests there when it came
}

// Run lets a world happen.
func Run(o Options) *Result { return newWorld(&o).run() }

func newWorld(o *Options) *world {
	w := &world{o: o, rng: rand.New(rand.NewPCG(o.Seed, 3)), due: make([]time.Duration, len(o.Engines)), began: make([]time.Duration, len(o.Engines)),
		after: make(map[int][]int), shared: newSharing(o.Requests), failing: make([]float64, len(o.Engines))}
	for _, cfg := range o.Engines {
		w.engines = append(w.engines, NewEngine(cfg))
	}
	for range max(o.Replicas, 1) {
		w.gateways = append(w.gateways, o.Policy.make(w))
	}
	for range o.Engines {
		w.streams = append(w.streams, make([]int, len(w.gateways)))
	}
	w.result.counted, w.result.busy = make([]outcome, 0, len(o.Requests)), make([]float64, len(o.Engines))
	return w
}

func (w *world) run() *Result {
	w.start()
	for w.open > 0 {
		t := w.timers.pop()
		if t.at > w.o.End && w.o.End > 0 || w.o.Until > 0 && t.at > w.o.Until && w.waited == 0 {
			break
		}
		w.now = t.at
		w.fire(t)
	}
	w.close()
	return &w.result
}

func (w *world) start() {
	for i := range w.o.Requests {
		if f := w.o.Requests[i].Follows; f >= 0 {
			w.after[f] = append(w.after[f], i)
		}
	}
	w.share()
	for range max(w.o.Concurrency, 1) {
		w.nextArrival()
	}
	for g := range w.gateways {
		for i := range w.engines {
			w.scrape(g, i)
		}
		w.timers.push(timer{at: tickEvery, kind: timerTick, gateway: g})
	}
	for i := range w.o.Faults {
		w.timers.push(timer{at: w.o.Faults[i].At, kind: timerFault, index: i})
	}
	if w.o.Warm > 0 {
		w.timers.push(timer{at: w.o.Warm, kind: timerCount})
	}
	if w.o.Until > 0 {
		w.timers.push(timer{at: w.o.Until, kind: timerCount, index: 1})
	}
}

// tickEvery is how often a gateway looks for what passed without an event.
const tickEvery = 250 * time.Millisecond

// nextArrival schedules the next request that follows none.
func (w *world) nextArrival() {
	for w.arrivals < len(w.o.Requests) {
		i := w.arrivals
		w.arrivals++
		if r := &w.o.Requests[i]; r.Follows < 0 {
			w.timers.push(timer{at: max(r.At, w.now), kind: timerArrival, index: i})
			w.open++
			return
		}
	}
}

func (w *world) fire(t timer) {
	switch t.kind {
	case timerStep:
		if at, ok := w.engines[t.index].Next(); ok && at == t.at {
			w.step(t.index)
		}
	case timerArrival:
		if w.o.Requests[t.index].Follows < 0 && w.o.Concurrency == 0 {
			w.nextArrival()
		}
		w.arrive(t.index)
	case timerScrape:
		w.scrape(t.gateway, t.index)
	case timerTick:
		w.gateways[t.gateway].tick(w.now)
		w.move()
		w.timers.push(timer{at: w.now + tickEvery, kind: timerTick, gateway: t.gateway})
	case timerFault:
		w.fault(&w.o.Faults[t.index])
	case timerDo:
		do := w.todo[t.index]
		delete(w.todo, t.index)
		do()
	case timerHear:
		w.hear(t)
	case timerCount:
		w.count(t.index)
	case timerShare:
		w.deliver(t.gateway)
	}
}

// count notes how many tokens there are at the beginning of what counts, 0, or at its end, 1.
func (w *world) count(which int) {
	w.given[which] = 0
	for _, e := range w.engines {
		w.given[which] += e.given
	}
}

// scrape reads an endpoint for a gateway and schedules the next time.
func (w *world) scrape(g, i int) {
	reading, ok := w.engines[i].Reading(w.now)
	w.gateways[g].observe(w.now, i, reading, ok)
	every := w.o.Scrape
	if every == 0 {
		every = 50 * time.Millisecond
	}
	jitter := time.Duration((w.rng.Float64() - .5) * .2 * float64(every))
	w.timers.push(timer{at: w.now + every + jitter, kind: timerScrape, gateway: g, index: i})
}

// arrive takes in a request and sends it.
func (w *world) arrive(i int) {
	f := w.newFlight()
	r := &w.o.Requests[i]
	f.index, f.request, f.arrived, f.first, f.heard, f.tried = i, r, w.now, 0, 0, f.tried[:0]
	f.hashes = r.appendHashes(f.hashes[:0])
	if w.counts(f) {
		w.waited++
	}
	f.replica = 0
	if len(w.gateways) > 1 {
		f.replica = w.rng.IntN(len(w.gateways))
	}
	f.gateway = w.gateways[f.replica]
	w.send(f)
}

func (w *world) newFlight() *flight {
	if n := len(w.spare); n > 0 {
		f := w.spare[n-1]
		w.spare = w.spare[:n-1]
		return f
	}
	f := &flight{}
	f.seq.Tag = len(w.flights)
	w.flights = append(w.flights, f)
	return f
}

// send lets the gateway choose until an engine takes the request or none is left.
func (w *world) send(f *flight) {
	s := &f.seq
	for {
		s.Prompt, s.Output, s.Blocks, s.Adapter = f.request.PromptTokens(), f.request.Output, f.hashes, f.request.Adapter
		s.Private = len(f.hashes) - w.shared.blocks(f.request)
		f.attempt++
		f.endpoint = f.gateway.pick(w.now, f)
		if f.endpoint < 0 {
			w.end(f, true)
			w.spare = append(w.spare, f)
			return
		}
		e := w.engines[f.endpoint]
		if share := w.failing[f.endpoint]; share > 0 && w.rng.Float64() < share {
			w.end(f, true)
			w.tell(f, endFailed)
			return
		}
		if e.Submit(w.now, s) {
			w.schedule(f.endpoint)
			return
		}
		if !e.Loading(w.now) { // it will never take this request, and says so to the client through the gateway: status 400
			w.end(f, true)
			w.tell(f, endRejected)
			return
		}
		f.gateway.done(w.now, f, endRefused)
		f.tried = append(f.tried, f.endpoint)
	}
}

// schedule sets the timer for the engine's step, if it has a new one.
func (w *world) schedule(i int) {
	w.publish(i)
	if at, ok := w.engines[i].Next(); ok && at != w.due[i] {
		w.due[i], w.began[i] = at, w.now
		w.timers.push(timer{at: at, kind: timerStep, index: i})
	}
}

// step ends an engine's step and passes on what happened.
func (w *world) step(i int) {
	w.result.busy[i] += (w.now - w.began[i]).Seconds()
	events := w.engines[i].Step(w.now)
	for g, n := range w.streams[i] {
		switch {
		case n == 0: // no token for this gateway, but perhaps first ones
		case w.o.Wire == 0:
			w.gateways[g].progress(w.now, i)
		default: // the least of n delays
			w.timers.push(timer{at: w.late(n), kind: timerHear, news: newsProgress, gateway: g, index: i})
		}
	}
	for _, e := range events {
		if e.Seq.Tag == nobody {
			continue
		}
		f := w.flights[e.Seq.Tag]
		switch e.Kind {
		case FirstToken:
			f.first = w.now
			w.streams[i][f.replica]++
			if w.o.Wire == 0 {
				f.gateway.first(w.now, f)
			} else {
				w.timers.push(timer{at: w.inOrder(f), kind: timerHear, news: newsFirst, index: f.seq.Tag, attempt: f.attempt})
			}
		case Finished:
			w.end(f, false)
			w.tell(f, endFinished)
		case Preempted:
			w.result.Preemptions++
		}
	}
	w.schedule(i)
}

// late is when a gateway hears of what happens now and is told so many times over.
func (w *world) late(times int) time.Duration {
	return w.now + time.Duration(w.rng.ExpFloat64()*float64(w.o.Wire)/float64(times))
}

// inOrder is when a flight's gateway hears of what happens to it now: after what happened before.
func (w *world) inOrder(f *flight) time.Duration {
	f.heard = max(f.heard, w.late(1))
	return f.heard
}

// tell lets a flight's gateway hear that it has ended at its endpoint.
func (w *world) tell(f *flight, how ending) {
	t := timer{at: w.now, kind: timerHear, news: newsDone, how: how, index: f.seq.Tag, attempt: f.attempt}
	if w.o.Wire == 0 {
		w.hear(t)
		return
	}
	t.at = w.inOrder(f)
	w.timers.push(t)
}

// hear is news coming to a gateway.
func (w *world) hear(t timer) {
	if t.news == newsProgress {
		w.gateways[t.gateway].progress(w.now, t.index)
		return
	}
	f := w.flights[t.index]
	switch {
	case t.attempt != f.attempt: // its gateway had moved it before
	case t.news == newsFirst:
		f.gateway.first(w.now, f)
	case t.how == endBroken:
		w.broken(f)
	default:
		f.gateway.done(w.now, f, t.how)
		w.spare = append(w.spare, f)
	}
}

// end takes note of a request that is over, and lets those that follow it come. Its flight is free when its gateway has
// heard of the end.
func (w *world) end(f *flight, failed bool) {
	w.open--
	if f.first != 0 {
		w.streams[f.endpoint][f.replica]--
	}
	w.record(f, failed, !failed)
	if !failed {
		for _, i := range w.after[f.index] {
			w.open++
			w.timers.push(timer{at: w.now + w.o.Requests[i].At, kind: timerArrival, index: i})
		}
	}
	delete(w.after, f.index)
	if w.o.Concurrency > 0 && w.o.Requests[f.index].Follows < 0 {
		w.nextArrival()
	}
}

// counts says whether a request came when they count.
func (w *world) counts(f *flight) bool {
	return f.arrived >= w.o.Warm && (w.o.Until == 0 || f.arrived < w.o.Until)
}

func (w *world) record(f *flight, failed, finished bool) {
	f.request = nil
	if !w.counts(f) {
		return
	}
	w.waited--
	w.result.add(f, w.now, w.engines[max(f.endpoint, 0)].Produced(&f.seq), failed, finished)
}

// close counts what has not finished.
func (w *world) close() {
	for _, f := range w.flights {
		if f.request != nil {
			w.record(f, false, false)
		}
	}
	for _, e := range w.engines {
		w.result.Steps += e.Steps()
	}
	from, to := w.o.Warm, w.now
	if w.o.Until > 0 && w.now >= w.o.Until {
		to = w.o.Until
	} else {
		w.count(1)
	}
	if to > from {
		w.result.tokensPerSecond = float64(w.given[1]-w.given[0]) / (to - from).Seconds()
	}
	w.result.sort()
}

// fault lets something happen to an engine.
func (w *world) fault(x *Fault) {
	e := w.engines[x.Endpoint]
	switch x.Kind {
	case Slow:
		e.SetSlow(x.Value)
	case Frozen, Thawed:
		e.Freeze(w.now, x.Kind == Frozen)
	case Emptied:
		e.cache.empty()
	case Blind, Sighted:
		e.SetBlind(x.Kind == Blind)
	case Failing:
		w.failing[x.Endpoint] = x.Value
	case Crashed:
		lost := e.Crash()
		if x.Value > 0 {
			e.Load(w.now + seconds(x.Value))
		}
		for _, s := range lost {
			if s.Tag != nobody {
				w.tell(w.flights[s.Tag], endBroken)
			}
		}
	case Flooded:
		w.flood(e, x.Value)
	default:
		panic(fmt.Sprintf("unknown fault %d", x.Kind))
	}
	w.schedule(x.Endpoint)
}

// broken handles a connection that an engine dropped: without a byte the request goes elsewhere, else it has failed.
func (w *world) broken(f *flight) {
	f.gateway.done(w.now, f, endBroken)
	if f.first != 0 {
		w.end(f, true)
		w.spare = append(w.spare, f)
		return
	}
	f.tried = append(f.tried, f.endpoint)
	w.result.Moved++
	w.send(f)
}

// move sends requests without a byte elsewhere whose gateway has given up their endpoint.
func (w *world) move() {
	if len(w.o.Faults) == 0 {
		return
	}
	for _, f := range w.flights {
		if f.request == nil || f.first != 0 || !f.gateway.lost(f) {
			continue
		}
		w.engines[f.endpoint].Abort(&f.seq)
		f.gateway.done(w.now, f, endMoved)
		f.tried = append(f.tried, f.endpoint)
		w.result.Moved++
		w.send(f)
	}
}

type timerKind uint8

const (
	timerStep timerKind = iota
	timerArrival
	timerScrape
	timerTick
	timerFault
	timerDo
	timerHear
	timerCount
	timerShare
)

// news is what a gateway hears.
type news uint8

const (
	newsProgress news = iota // the first token of a step to come, of the gateway's streams there
	newsFirst
	newsDone
)

// timer is something that will happen; order makes the order of simultaneous ones a matter of which was set first.
type timer struct {
	at      time.Duration
	order   uint64
	index   int
	gateway int
	attempt int
	kind    timerKind
	news    news
	how     ending
}
