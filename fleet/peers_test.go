package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// keep copies a note, which its teller reuses.
func keep(to *[]Note) func(n *Note) {
	return func(n *Note) {
		kept := *n
		kept.Blocks, kept.Ends = slices.Clone(n.Blocks), slices.Clone(n.Ends)
		*to = append(*to, kept)
	}
}

// link carries the notes of one pool to another.
type link struct {
	from, to *Pool
	name     string
	sent     []Note
	broken   bool
}

// peers makes n pools that tell each other everything over links, by teller and hearer.
func peers(n int, make func() *Pool) ([]*Pool, []*link) {
	var pools []*Pool
	var links []*link
	for range n {
		pools = append(pools, make())
	}
	for i, from := range pools {
		var out []*link
		for k, to := range pools {
			if k != i {
				out = append(out, &link{from: from, to: to, name: fmt.Sprint("peer ", i)})
			}
		}
		from.Tell(func(n *Note) {
			for _, l := range out {
				keep(&l.sent)(n)
			}
		})
		links = append(links, out...)
	}
	return pools, links
}

// pass has the link's hearer hear everything that was told.
func (l *link) pass() {
	l.to.Hear(l.name, l.sent)
	l.sent = nil
}

func passAll(links []*link) {
	for _, l := range links {
		l.pass()
	}
}

// What a peer sends counts here as our own would, until it ends.
func TestPeersRequestsCount(t *testing.T) {
	pools, links := peers(2, func() *Pool { return newPool(t, 2) })
	a, b := pools[0], pools[1]
	l := pick(t, a, 1, prompt(1, 8000))
	passAll(links)
	audit(t, b)
	row := b.by[l.Endpoint.Name].row
	if b.view.Backlog[row] != l.uncached || b.view.InFlight[row] != 1 || b.view.Held[row] != l.held || b.view.SentSince[row] != 1 {
		t.Errorf("got backlog %v, in flight %v, held %v, sent since %v; want what %v tokens make", b.view.Backlog[row], b.view.InFlight[row],
			b.view.Held[row], b.view.SentSince[row], l.uncached)
	}
	if n, s := b.InFlight(), b.Status(sec(1))[row]; n != 0 || s.InFlight != 0 {
		t.Errorf("got %d and %d of our own in flight, want none", n, s.InFlight)
	}
	if other := pick(t, b, 1.001, prompt(2, 8000)); other.Endpoint.Name == l.Endpoint.Name {
		t.Error("a prompt was sent behind a peer's, with an idle endpoint beside it")
	}
	if same := pick(t, b, 1.001, prompt(1, 8000)); same.Endpoint.Name != l.Endpoint.Name {
		t.Error("a prompt was sent away from where a peer has brought its prefix")
	}
	l.FirstByte(sec(1.5))
	passAll(links)
	audit(t, b)
	if b.rows[row].lastFirst != 1.5 || b.view.Rates != nil && b.kinds[b.rows[row].kind].total.firsts != 0 {
		t.Errorf("got last first token at %v, want 1.5", b.rows[row].lastFirst)
	}
	got, want := b.kinds[0].total, a.kinds[0].total // what is expected depends on what else is there
	if got.prefillSeconds != want.prefillSeconds || got.prefillTokens != want.prefillTokens || want.prefillTokens == 0 {
		t.Errorf("got evidence %+v, want the peer's %+v", got, want)
	}
	l.Done(sec(2), Outcome{PromptTokens: 2500, OutputTokens: 50})
	passAll(links)
	audit(t, b)
	if b.view.InFlight[row] != float32(len(b.rows[row].leases)) || b.rows[row].heard != 0 {
		t.Errorf("got %v in flight, %d of them peers', want none", b.view.InFlight[row], b.rows[row].heard)
	}
	if a.means.bytesPerToken() != b.means.bytesPerToken() {
		t.Errorf("got %v bytes a token, want the peer's %v", b.means.bytesPerToken(), a.means.bytesPerToken())
	}
}

// troubled is a random life of three pools whose links lose, repeat and break.
type troubled struct {
	r     *rand.Rand
	pools []*Pool
	links []*link
	now   time.Duration
	open  []*Lease
}

func (h *troubled) step() {
	h.now += time.Duration(h.r.IntN(20)) * time.Millisecond
	p := h.pools[h.r.IntN(len(h.pools))]
	switch k := h.r.IntN(20); {
	case k < 7:
		q := prompt(1+h.r.IntN(9), 256+h.r.IntN(20_000))
		q.Streamed, q.Unseen = h.r.IntN(3) > 0, h.r.IntN(3) == 0
		if l, _ := p.Pick(h.now, q); l != nil {
			h.open = append(h.open, l)
		}
	case k < 13 && len(h.open) > 0:
		i := h.r.IntN(len(h.open))
		if h.r.IntN(2) == 0 {
			h.open[i].FirstByte(h.now)
			return
		}
		h.open[i].Done(h.now, Outcome{Ending: Ending(h.r.IntN(5)), OutputTokens: h.r.IntN(100)})
		h.open = slices.Delete(h.open, i, i+1)
	case k < 15:
		p.Observe(h.now, h.now, fmt.Sprintf("e%d:8000", h.r.IntN(5)), h.reading(), nil)
	case k < 16:
		p.SetEndpoints(named(3 + h.r.IntN(3)))
	default:
		h.carry(h.links[h.r.IntN(len(h.links))])
	}
}

// reading is one of an engine that counts its first tokens, now and then.
func (h *troubled) reading() Reading {
	r := working(1, h.now.Seconds())
	if h.r.IntN(2) == 0 {
		r.Firsts, r.FirstSeconds = math.Floor(50*h.now.Seconds()), h.now.Seconds()
	}
	return r
}

// carry lets something happen to a link.
func (h *troubled) carry(l *link) {
	switch h.r.IntN(8) {
	case 0: // some notes are lost, which the sender knows
		if len(l.sent) > 0 {
			i := h.r.IntN(len(l.sent))
			l.sent, l.broken = slices.Delete(l.sent, i, min(i+1+h.r.IntN(3), len(l.sent))), true
		}
	case 1: // the peer is lost; it will be back
		l.sent, l.broken = nil, true
		l.to.Forget(l.name)
	case 2: // all comes twice
		l.to.Hear(l.name, l.sent)
		l.pass()
	case 3: // an end overtakes its beginning
		h.r.Shuffle(len(l.sent), func(i, k int) { l.sent[i], l.sent[k] = l.sent[k], l.sent[i] })
		l.pass()
		l.broken = true
	default:
		if l.broken {
			h.heal(l)
		}
		l.pass()
	}
}

func (h *troubled) heal(l *link) {
	l.sent, l.broken = nil, false
	l.from.Recount(h.now, keep(&l.sent))
}

// E31: notes are lost, repeated, overtaken, and peers come and go: every column is what the requests add up to, after a
// recount each pool knows of exactly what the others have open, and in the end nothing is counted anywhere.
func TestNotesHeal(t *testing.T) {
	for seed := range uint64(60) {
		h := &troubled{r: rand.New(rand.NewPCG(seed, 7))}
		h.pools, h.links = peers(3, func() *Pool { return newPool(t, 5) })
		settle := func() {
			for _, p := range h.pools {
				p.SetEndpoints(named(5))
			}
			for _, l := range h.links {
				h.heal(l)
				l.pass()
			}
			for i, p := range h.pools {
				audit(t, p)
				got, want := 0, len(h.open)
				for _, ep := range p.rows {
					got += len(ep.leases)
				}
				gone := 0 // at endpoints that left and came back, where nobody counts them
				for _, l := range h.open {
					if l.ep.row < 0 {
						gone++
					}
				}
				if got != want-gone {
					t.Fatalf("seed %d: pool %d counts %d requests, want %d", seed, i, got, want-gone)
				}
			}
		}
		for range 300 {
			h.step()
			for _, p := range h.pools {
				audit(t, p)
			}
		}
		settle()
		for range 300 {
			h.step()
		}
		for _, l := range h.open {
			l.Done(h.now, Outcome{})
		}
		h.open = nil
		settle()
		for _, p := range h.pools {
			empty(t, p)
		}
	}
}

// A lost peer's requests count no longer; its prefixes stay known.
func TestLostPeerIsForgotten(t *testing.T) {
	pools, links := peers(2, func() *Pool { return newPool(t, 3) })
	name := pick(t, pools[0], 1, prompt(1, 8000)).Endpoint.Name
	passAll(links)
	pools[1].Forget("peer 0")
	empty(t, pools[1])
	if len(pools[1].peers) != 0 {
		t.Errorf("got %d peers, want none", len(pools[1].peers))
	}
	if got := pick(t, pools[1], 30, prompt(1, 8000)).Endpoint.Name; got != name {
		t.Errorf("got %s for a known prefix, want %s", got, name)
	}
}

// What a new replica is told of prefixes makes it choose as the one that knows them.
func TestRecalledPrefixesMatch(t *testing.T) {
	a, b := newPool(t, 3), newPool(t, 3)
	for i := range 40 {
		pick(t, a, float64(i), prompt(1+i, 2000+i*300)).Done(sec(float64(i)+.5), Outcome{})
	}
	var notes []Note
	for _, e := range a.Endpoints() {
		a.Recall(sec(50), e.Name, 1<<16, keep(&notes))
	}
	b.Hear("a", notes)
	for i, ep := range a.rows {
		if got, want := b.index.Held(b.rows[i].slot), a.index.Held(ep.slot); got != want || want == 0 {
			t.Errorf("%s: got %d units, want %d", ep.Name, got, want)
		}
	}
	for i := range 40 {
		q := prompt(1+i, 2000+i*300)
		if got, want := pick(t, b, 60+float64(i), q).Endpoint.Name, pick(t, a, 60+float64(i), q).Endpoint.Name; got != want {
			t.Errorf("prompt %d: got %s, want %s", i, got, want)
		}
	}
	notes = nil
	a.Recall(sec(50), "e0:8000", 5, keep(&notes))
	a.Recall(sec(50), "unknown:1", 5, keep(&notes))
	if len(notes) != 1 || len(notes[0].Blocks) != 5 {
		t.Errorf("got %d notes, want one with the latest 5 blocks", len(notes))
	}
}

// E06: many replicas see one idle endpoint at once. What they send there within the delay of their notes can't be
// helped, more than that does not go there.
func TestReplicasDoNotStampede(t *testing.T) {
	const replicas, requests, delay = 16, 200, 3 // ms
	run := func(share bool) int {
		pools, links := peers(replicas, func() *Pool {
			p := newPool(t, 4)
			for i, e := range p.Endpoints() {
				r := working(0, 1000)
				if i > 0 {
					r.Running, r.Waiting = 8, 6 // others' work, some 3000 tokens
				}
				p.Observe(0, 0, e.Name, r, nil)
			}
			return p
		})
		r := rand.New(rand.NewPCG(1, 1))
		there := 0
		for ms := range requests { // one each millisecond
			l := pick(t, pools[r.IntN(replicas)], float64(ms)/1000, prompt(1+ms, 2000))
			if l.Endpoint.Name == "e0:8000" {
				there++
			}
			if share && ms%delay == delay-1 {
				passAll(links)
			}
		}
		return there
	}
	alone, together := run(false), run(true)
	// Six prompts level the idle endpoint with the others; after that each gets its quarter.
	if want := requests/4 + 6 + 2*delay; together > want || together < requests/5 {
		t.Errorf("got %d of %d requests at the idle endpoint, want about a quarter, at most %d", together, requests, want)
	}
	if alone < 3*together/2 {
		t.Errorf("without notes %d requests went there, with them %d: the test shows nothing", alone, together)
	}
}

// Requests that a peer told of are not others', so that replicas that hear each other need no band to agree in.
func TestPeersAreNotOthers(t *testing.T) {
	pools, links := peers(3, func() *Pool { return newPool(t, 2) })
	for i := range 12 {
		pick(t, pools[i%3], float64(i)/10, prompt(1+i, 4000))
	}
	passAll(links)
	for _, p := range pools {
		for i := range 100 {
			for _, ep := range p.rows {
				p.Observe(sec(2+float64(i)), sec(2+float64(i)), ep.Name, working(float64(len(ep.leases)), 400_000), nil)
			}
		}
		if p.view.Alone != 1 {
			t.Errorf("alone is %v, want 1", p.view.Alone)
		}
	}
}

// Whatever a peer says, columns stay what the requests add up to.
func TestOddNotesDoNoHarm(t *testing.T) {
	p := newPool(t, 2)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	p.Hear("x", []Note{
		{Kind: NoteSent, ID: 1, Endpoint: "e0:8000", Uncached: nan, Held: inf, At: math.MaxInt64},
		{Kind: NoteSent, ID: 2, Endpoint: "e1:8000", Uncached: -5, Held: -inf, At: math.MinInt64, UnitBytes: unitBytes, Blocks: []uint64{1, 2}, Ends: []int32{1}},
		{Kind: NoteSent, ID: 3, Endpoint: "e7:8000"},
		{Kind: NoteSent, ID: 4, Endpoint: "e1:8000", UnitBytes: 7, Blocks: []uint64{5}, MissedKey: 3, Missed: nan},
		{Kind: NoteSent, ID: 5, Endpoint: "e1:8000", UnitBytes: unitBytes, Blocks: []uint64{5, 6, 7}, Ends: []int32{9, 2, -4}},
		{Kind: NoteHolds, Endpoint: "e1:8000", UnitBytes: unitBytes, Blocks: []uint64{8, 9}, Ends: []int32{0, -1}},
		{Kind: NoteBegun, ID: 99}, {Kind: NoteEnded, ID: 98}, {Kind: 200, ID: 97},
	})
	audit(t, p)
	if got := p.index.Held(p.rows[0].slot) + p.index.Held(p.rows[1].slot); got != 0 {
		t.Errorf("got %d units held of notes that make no sense, want none", got)
	}
	if l := pick(t, p, 1, prompt(1, 3000)); l == nil {
		t.Error("got nothing")
	}
	p.Hear("x", []Note{{Kind: NoteRecount}})
	if n := p.rows[0].heard + p.rows[1].heard; n != 0 {
		t.Errorf("got %d of a peer's requests after a recount of none", n)
	}
	var many []Note
	for id := range uint64(maxHeard + 100) {
		many = append(many, Note{Kind: NoteSent, ID: id + 1, Endpoint: "e0:8000", Uncached: 1, Held: 1})
	}
	p.Hear("x", many)
	if got := p.rows[0].heard; got != maxHeard {
		t.Errorf("got %d of a peer's requests counted, want at most %d", got, maxHeard)
	}
}

// What a pick costs more when it is told, and what a note costs to hear.
func BenchmarkTold(b *testing.B) {
	for _, told := range []bool{false, true} {
		b.Run(fmt.Sprintf("pick/told=%v", told), func(b *testing.B) {
			p := NewPool("m")
			p.Apply(PoolConfig{Name: "m", Endpoints: named(25)})
			if told {
				n := 0
				p.Tell(func(*Note) { n++ })
			}
			q := prompt(1, 16_000)
			b.ReportAllocs()
			for i := range b.N {
				l, _ := p.Pick(time.Duration(i)*time.Millisecond, q)
				l.FirstByte(time.Duration(i) * time.Millisecond)
				l.Done(time.Duration(i)*time.Millisecond, Outcome{})
			}
		})
	}
	b.Run("hear", func(b *testing.B) {
		p := NewPool("m")
		p.Apply(PoolConfig{Name: "m", Endpoints: named(25)})
		q := prompt(1, 16_000)
		notes := []Note{{Kind: NoteSent, Endpoint: "e3:8000", Uncached: 4000, Held: 4200, Streamed: true, Blocks: q.Blocks, UnitBytes: unitBytes},
			{Kind: NoteBegun}, {Kind: NoteEnded}}
		b.ReportAllocs()
		for i := range b.N {
			for k := range notes {
				notes[k].ID, notes[k].At = uint64(i+1), time.Duration(i)*time.Millisecond
			}
			p.Hear("a", notes)
		}
	})
}

// A recount tells of the adapters that are being loaded, and telling it again adds nothing.
func TestRecountTellsLoadsUnderWay(t *testing.T) {
	a, b := adapterPool(t, 1, 4), adapterPool(t, 1, 4)
	at(t, a, 1, "e0:8000", adapted("x"))
	begun := at(t, a, 1.1, "e0:8000", adapted("y"))
	var notes []Note
	a.Recount(sec(1.2), keep(&notes))
	for range 2 {
		b.Hear("a", notes)
		if got := b.rows[0].loadEnd; got < 1.1 || got > a.rows[0].loadEnd {
			t.Errorf("got loads until %v s, want a time after 1.1 s and up to %v s", got, a.rows[0].loadEnd)
		}
		if x := b.rows[0].uses["x"]; x == nil || x.requests != 1 {
			t.Errorf("got %+v of the adapter, want its one request", x)
		}
	}
	begun.FirstByte(sec(2))
	c := adapterPool(t, 1, 4)
	notes = nil
	a.Recount(sec(2), keep(&notes))
	c.Hear("a", notes)
	if got := c.rows[0].loadEnd; got > 1.1 {
		t.Errorf("got loads until %v s, want those that are over left out", got)
	}
}

// A session is where its latest request went, whichever replica sent it.
func TestPeersSessionsStay(t *testing.T) {
	pools, links := peers(2, func() *Pool { return sessionPool(t, 8, nil) })
	for key := uint64(1); key <= 20; key++ {
		here := pick(t, pools[0], float64(key), withSession(key))
		here.Done(sec(float64(key)+.1), Outcome{})
		passAll(links)
		if there := pick(t, pools[1], float64(key)+.2, withSession(key)).Endpoint.Name; there != here.Endpoint.Name {
			t.Errorf("session %d went to %s, a peer has it at %s", key, there, here.Endpoint.Name)
		}
	}
	p := pools[0]
	p.Hear("late", []Note{{Kind: NoteSent, At: sec(0), ID: 1, Endpoint: "e0:8000", Session: 99}})
	p.Hear("early", []Note{{Kind: NoteSent, At: sec(50), ID: 1, Endpoint: "e1:8000", Session: 99},
		{Kind: NoteSent, At: sec(40), ID: 2, Endpoint: "e2:8000", Session: 99}, {Kind: NoteSent, At: sec(60), ID: 3, Endpoint: "gone:1", Session: 99}})
	if got := p.sessions.home(99, 60, 600); got != "e1:8000" {
		t.Errorf("got %q, want where the latest request went", got)
	}
}

// A pool that leaves and comes back numbers its requests anew, and peers that have kept it count them right.
func TestPoolThatComesBackIsHeard(t *testing.T) {
	var a, b Fleet
	var notes []Note
	a.Share(func(_ string, n *Note) { keep(&notes)(n) })
	configs := []PoolConfig{{Name: "m", Model: "m", Endpoints: named(2)}}
	a.Apply(configs, "")
	b.Apply(configs, "")
	there := b.Pools()[0]
	expect := func(want int) {
		t.Helper()
		b.Hear("a", "m", notes)
		notes = nil
		got := 0
		for _, ep := range there.rows {
			got += ep.heard
		}
		if got != want {
			t.Errorf("got %d requests of the peer, want %d", got, want)
		}
		audit(t, there)
	}
	var open []*Lease
	for range 5 {
		open = append(open, pick(t, a.Pools()[0], 1, short()))
	}
	expect(5)
	a.Apply(nil, "")
	expect(0)
	a.Apply(configs, "")
	again := pick(t, a.Pools()[0], 2, short())
	for _, l := range open {
		l.Done(sec(3), Outcome{})
	}
	expect(1)
	again.Done(sec(4), Outcome{})
	expect(0)
}

// An end that overtakes what it ends leaves nothing counted.
func TestEndBeforeItsBeginning(t *testing.T) {
	p := newPool(t, 1)
	p.Hear("a", []Note{{Kind: NoteEnded, At: sec(2), ID: 7}, {Kind: NoteSent, At: sec(1), ID: 7, Endpoint: "e0:8000", Uncached: 100}})
	empty(t, p)
}
