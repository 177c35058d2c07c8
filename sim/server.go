package sim

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/route"
)

// ServerOptions describe a server.
type ServerOptions struct {
	// Engine is the engine behind it. Without adapter slots it has as many as there are Adapters.
	Engine EngineConfig
	// Model is the name it serves; empty means the profile's.
	Model string
	// Adapters are there from the start; more can be loaded if the engine has slots.
	Adapters []string
	// Seed decides what is answered to a prompt, and how long.
	Seed uint64
	// Speed is how many seconds of the engine pass in a second; 0 means 1. Times on the metrics page are
	// the world's, as a client sees them.
	Speed float64
	// MaxModelLen is the longest prompt and answer together; 0 means 32768 or what the cache holds, whichever is less.
	MaxModelLen int
	// Output is how long answers are that no limit cuts; the zero value means a mean of 200 tokens with a sigma of .8.
	Output Length
	// KVEvents is the ZeroMQ address on which events of the KV cache are published, "tcp://127.0.0.1:5557" or with port 0; empty for none. With KVConnect the
	// subscriber listens there. Replay is the address where missed events can be asked for, empty for none, KVTopic the topic.
	KVEvents, Replay, KVTopic string
	KVConnect                 bool
}

// Server is an engine in real time with vLLM's HTTP API. It is an http.Handler; its clock is package time's, so that it
// runs in a testing/synctest bubble. It must be closed.
type Server struct {
	o      ServerOptions
	words  *words
	mux    *http.ServeMux
	origin time.Time // of the engine's time
	kick   chan struct{}
	closed chan struct{}
	ended  sync.WaitGroup
	load   atomic.Int64  // requests that have not ended
	served atomic.Uint64 // ids given out

	mu       sync.Mutex
	engine   *Engine
	calls    []*call // by the tag of their sequence; a slot is reused
	spare    []*call
	adapters []loadedAdapter
	meter    meter
	http     httpMeter
	page     *page
	series   adapterSeries
	born     time.Time // start of the engine's present life
	life     *life
	failing  float64    // share of the requests answered with an error
	events   *publisher // nil without KV events and while the server is down
	buffer   []byte     // of the metrics page
}

// loadedAdapter is one that requests can name.
type loadedAdapter struct {
	name, path string
	created    int64
}

// life is what ends with a crash.
type life struct {
	over chan struct{}
	// thawed is open while nothing is answered, nil otherwise.
	thawed chan struct{}
	down   bool
	// onOver lets what serves the handler drop its connections, onBegin accept new ones.
	onOver  func()
	onBegin func() error
}

// callState is where a call stands; it only rises.
type callState = int32

const (
	callRunning callState = iota
	callFinished
	callLost // the engine crashed
)

// call is a request that an engine computes, and the meeting point of its handler and the driver.
type call struct {
	seq     Seq
	tokens  []uint32 // prompt, and with KV events the answer
	wake    chan struct{}
	out     atomic.Int32 // tokens out
	state   atomic.Int32
	limited bool // ends by its limit, not by itself
	most    int  // max_tokens
	salt    string

	// The rest is the driver's, under the server's lock, in the engine's time.
	arrived, scheduled, last time.Duration
	seen                     bool // admitted
	preempted                int
}

// NewServer starts a server. It fails only for options that contradict themselves or an address of KV events that can't be had.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Model == "" {
		o.Model = o.Engine.Profile.Model
	}
	if o.Speed == 0 {
		o.Speed = 1
	}
	if o.Engine.AdapterSlots == 0 {
		o.Engine.AdapterSlots = len(o.Adapters)
	}
	if o.Output == (Length{}) {
		o.Output = Length{Mean: 200, Sigma: .8}
	}
	if o.Model == "" || o.Speed < 0 {
		return nil, fmt.Errorf("cannot start a simulated server: it needs a model's name and a positive speed, got %q and %g", o.Model, o.Speed)
	}
	s := &Server{o: o, words: newWords(), origin: time.Now(), kick: make(chan struct{}, 1), closed: make(chan struct{}), engine: NewEngine(o.Engine)}
	s.o.Engine = s.engine.Config()
	if s.o.MaxModelLen == 0 {
		s.o.MaxModelLen = min(32768, s.o.Engine.KVTokens)
	}
	for _, name := range o.Adapters {
		s.adapters = append(s.adapters, loadedAdapter{name, name, s.origin.Unix()})
	}
	s.engine.cache.watched = o.KVEvents != ""
	if err := s.live(); err != nil {
		return nil, err
	}
	s.mux = s.routes()
	s.ended.Go(s.drive)
	return s, nil
}

// Close stops the driver. Requests in progress are dropped like in a crash.
func (s *Server) Close() {
	s.mu.Lock()
	select {
	case <-s.closed:
		s.mu.Unlock()
		return
	default:
	}
	s.end()
	close(s.closed)
	s.mu.Unlock()
	s.ended.Wait()
}

// live begins a life of the engine: everything that it counts starts at nothing.
func (s *Server) live() error {
	s.born = time.Now()
	s.meter = meter{started: wall(s.born)}
	s.http = newHTTPMeter()
	s.series = adapterSeries{most: s.o.Engine.AdapterSlots, at: make(map[string]int)}
	next := &life{over: make(chan struct{}), onOver: func() {}, onBegin: func() error { return nil }}
	if s.life != nil {
		next.onOver, next.onBegin = s.life.onOver, s.life.onBegin
	}
	s.life = next
	page, err := newPage(&s.meter, pageSetup{model: s.o.Model, kvBlocks: len(s.engine.cache.refs), maxModelLen: s.o.MaxModelLen,
		adapters: s.o.Engine.AdapterSlots, born: wall(s.born)})
	if err != nil {
		return err
	}
	s.page = page
	if err := s.openEvents(); err != nil {
		return err
	}
	return s.life.onBegin()
}

// now is the engine's time.
func (s *Server) now() time.Duration {
	return time.Duration(float64(time.Since(s.origin)) * s.o.Speed)
}

// seconds are those in which so much of the engine's time passes.
func (s *Server) seconds(d time.Duration) float64 { return d.Seconds() / s.o.Speed }

// drive steps the engine when its steps end. It sleeps from one to the next.
func (s *Server) drive() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		s.mu.Lock()
		next, stepping := s.advance(s.now())
		s.mu.Unlock()
		if stepping {
			timer.Reset(time.Duration(float64(next)/s.o.Speed) - time.Since(s.origin))
		}
		select {
		case <-timer.C:
		case <-s.kick:
		case <-s.closed:
			timer.Stop()
			return
		}
	}
}

// advance does all steps that have ended by now, each at the time it ended, and returns when the current one will.
func (s *Server) advance(now time.Duration) (next time.Duration, stepping bool) {
	for {
		next, stepping = s.engine.Next()
		if !stepping || next > now {
			return next, stepping
		}
		s.step(next)
	}
}

// step ends the engine's step, and wakes those whose tokens came.
func (s *Server) step(at time.Duration) {
	e := s.engine
	tokens := e.decodes
	for _, q := range e.prefill {
		tokens += q.chunk
	}
	s.meter.iteration.observe(float64(tokens))
	for _, ev := range e.Step(at) {
		c := s.calls[ev.Seq.Tag]
		switch ev.Kind {
		case FirstToken:
			s.firstToken(c, at)
			c.rouse()
		case Finished:
			s.produced(c, at, c.seq.Output)
			s.finished(c, at)
			c.state.Store(callFinished)
			c.rouse()
		case Preempted:
			c.preempted++
		}
	}
	e.Each(func(q *Seq) {
		c := s.calls[q.Tag]
		if n := e.Produced(q); n > int(c.out.Load()) {
			s.produced(c, at, n)
			c.rouse()
		}
	})
	s.begun(at)
}

// begun takes note of what the engine did when it began a step.
func (s *Server) begun(at time.Duration) {
	for _, q := range s.engine.prefill {
		c := s.calls[q.Tag]
		if c.seen {
			continue
		}
		c.seen, c.scheduled = true, at
		s.meter.queried += float64(q.Prompt)
		s.meter.hit += float64(q.cached)
	}
	if end, stepping := s.engine.Next(); stepping {
		s.meter.busy += s.seconds(end - at)
	}
	if s.o.Engine.AdapterSlots > 0 {
		s.series.note(s.engine, wall(time.Now()))
	}
	s.publish()
}

// produced counts tokens up to n.
func (s *Server) produced(c *call, at time.Duration, n int) {
	had := int(c.out.Load())
	if n == had {
		return
	}
	s.meter.generated += float64(n - had)
	if had > 0 {
		s.meter.itl.observe(s.seconds(at - c.last))
	}
	c.last = at
	c.out.Store(int32(n))
}

func (s *Server) firstToken(c *call, at time.Duration) {
	s.meter.ttft.observe(s.seconds(at - c.arrived))
	s.meter.prompt += float64(c.seq.Prompt)
	s.meter.cached += float64(c.seq.cached)
	s.meter.computed += float64(c.seq.Prompt - c.seq.cached)
	s.produced(c, at, 1)
}

func (s *Server) finished(c *call, at time.Duration) {
	m, q := &s.meter, &c.seq
	if c.limited {
		m.length++
	} else {
		m.stop++
	}
	m.requestPrompt.observe(float64(q.Prompt))
	m.requestGenerated.observe(float64(q.Output))
	m.requestMax.observe(float64(q.Output))
	m.paramsN.observe(1)
	if c.most > 0 {
		m.paramsMax.observe(float64(c.most))
	}
	m.requestPreemptions.observe(float64(c.preempted))
	m.requestComputed.observe(float64(q.Prompt - q.cached))
	decode := s.seconds(at - q.first)
	m.e2e.observe(s.seconds(at - c.arrived))
	m.queue.observe(s.seconds(max(c.scheduled-c.arrived, 0)))
	m.inference.observe(s.seconds(at - c.scheduled))
	m.prefill.observe(s.seconds(q.first - c.scheduled))
	m.decode.observe(decode)
	if q.Output > 1 {
		decode /= float64(q.Output - 1)
	}
	m.tpot.observe(decode)
}

// rouse lets the call's handler look.
func (c *call) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// newCall gives out a call. It must be given back by release.
func (s *Server) newCall() *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.spare); n > 0 {
		c := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return c
	}
	c := &call{wake: make(chan struct{}, 1)}
	c.seq.Tag = len(s.calls)
	s.calls = append(s.calls, c)
	return c
}

// release takes a call back. One that the engine still has is aborted: its client has gone.
func (s *Server) release(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(s.now())
	if s.engine.Abort(&c.seq) {
		s.meter.abort++
		s.publish()
	}
	select {
	case <-c.wake:
	default:
	}
	c.tokens, c.seq.Blocks = c.tokens[:0], c.seq.Blocks[:0]
	s.spare = append(s.spare, c)
}

// submit hands a call's sequence to the engine. It reports false if that refuses it.
func (s *Server) submit(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	_, busy := s.advance(now)
	c.out.Store(0)
	c.state.Store(callRunning)
	c.arrived, c.scheduled, c.last, c.seen, c.preempted = now, now, now, false, 0
	if !s.engine.Submit(now, &c.seq) {
		return false
	}
	if !busy {
		s.begun(now)
		s.wakeDriver()
	}
	return true
}

func (s *Server) wakeDriver() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// wait returns when more than had tokens of the call are out or it has ended, with how many there are.
func (c *call) wait(ctx context.Context, had int) (out int, state callState, err error) {
	for {
		state = c.state.Load() // before out: a finished call has all its tokens
		if out = int(c.out.Load()); out > had || state != callRunning {
			return out, state, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return out, state, ctx.Err()
		}
	}
}

// root begins the chain of block hashes: whoever has another adapter or salt shares no block.
func root(adapter, salt string) uint64 {
	h := uint64(1)
	if adapter != "" {
		h = mix(h ^ route.HashName(adapter))
	}
	if salt != "" {
		h = mix(h + 1 ^ route.HashName(salt))
	}
	return h
}
