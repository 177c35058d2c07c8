package route

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs testdata/*.txt. A script has two kinds of commands:
//
//	endpoints        the fleet, as a table with a row per endpoint; cells are numbers, ? for not known, . for the default
//	explain          decides and prints the explanation
//	decide           decides and prints the reason and the names only
//	spread           decides under 1 000 seeds and prints how many requests went where
//	turns            decides n times in turn and prints the names
//
// All but the first take the request and the profile as arguments:
//
//	profile=latency|weights|round-robin weights=(queue=2,…) prompt=N output=N blocks=N affinity=N missed=N alone=N busy=N guard=N adapter=NAME seed=N turn=N n=N
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "endpoints" {
				s.endpoints(t, d)
				return ""
			}
			return s.run(t, d)
		})
	})
}

// script is the state of one script: the View that the next command decides on.
type script struct{ view View }

// endpoints reads the table of the fleet.
func (s *script) endpoints(t *testing.T, d *datadriven.TestData) {
	const now = 1000
	lines := strings.Split(strings.TrimSpace(d.Input), "\n")
	header := strings.Fields(lines[0])
	n := len(lines) - 1
	zeros := func() Column { return make(Column, n) }
	snap := &Snapshot{Version: 1, States: make([]State, n), Why: make([]string, n), Kinds: make([]int32, n), ReadAt: make([]float64, n),
		Waiting: zeros(), Running: zeros(), KVUse: zeros(), KVTokens: zeros()}
	s.view = View{Snapshot: snap, Now: now, StaleAfter: 2, InFlight: zeros(), Prefilling: zeros(), Backlog: zeros(), Work: zeros(), Head: zeros(), Context: zeros(),
		HeadSince: make([]float64, n), StepEnd: make([]float64, n), Held: zeros(), SentSince: zeros(), LastCold: make([]float64, n), EjectedUntil: make([]float64, n), LastByte: make([]float64, n), Errors: zeros(),
		Match: zeros(), Adapters: make([]Adapter, n), Tried: make([]bool, n), MeanUncached: 500, MeanOutput: 200,
		Rates: []Rate{{Name: "h100", Step: Step{T0: 6, PA: 4, PB: .02, PC: 1, DB: .01, DC: .04}, Prefill: 1, Decode: 1},
			{Name: "a10g", Step: Step{T0: 32, PA: 16, PB: .3, PC: 9, DB: .06, DC: .3}, Prefill: 1, Decode: 1}}}
	for i, line := range lines[1:] {
		cells := strings.Fields(line)
		if len(cells) != len(header) {
			t.Fatalf("%s: row %q has %d cells, want %d", d.Pos, line, len(cells), len(header))
		}
		snap.ReadAt[i], snap.KVTokens[i] = now, 400_000
		for c, cell := range cells {
			if cell == "." {
				continue
			}
			if !s.fact(i, header[c], cell) && !s.number(t, i, header[c], cell) {
				t.Fatalf("%s: column %q is not known", d.Pos, header[c])
			}
		}
		r := &s.view.Rates[snap.Kinds[i]] // tables give tokens
		s.view.Work[i], s.view.Head[i] = r.Compute(s.view.Backlog[i], 0), r.Compute(s.view.Head[i], 0)
	}
	snap.Hashes = make([]uint64, n)
	for i, name := range snap.Names {
		snap.Hashes[i] = HashName(name)
	}
}

// fact sets what is not a number; states are written like notReady:why+unmetered.
func (s *script) fact(i int, column, cell string) bool {
	snap := s.view.Snapshot
	switch column {
	case "name":
		snap.Names = append(snap.Names, cell)
	case "kind":
		snap.Kinds[i] = int32(slices.IndexFunc(s.view.Rates, func(r Rate) bool { return r.Name == cell }))
	case "adapter":
		for a := AdapterNone; a <= AdapterMissing; a++ {
			if a.String() == cell {
				s.view.Adapters[i] = a
			}
		}
	case "pod":
		if snap.Pods == nil {
			snap.Pods = make([]string, len(s.view.Tried))
		}
		snap.Pods[i] = cell
	case "tried":
		s.view.Tried[i] = cell == "yes"
	case "subset":
		if s.view.Outside == nil {
			s.view.Outside = make([]bool, len(s.view.Tried))
		}
		s.view.Outside[i] = cell == "no"
	case "state":
		states := map[string]State{"ready": 0, "notReady": NotReady, "draining": Draining, "unmetered": Unmetered, "stalled": Stalled}
		for one := range strings.SplitSeq(cell, "+") {
			name, why, _ := strings.Cut(one, ":")
			snap.States[i] |= states[name]
			snap.Why[i] += strings.ReplaceAll(why, "_", " ")
		}
	default:
		return false
	}
	return true
}

// number sets a cell of a numeric column; times are ages or, for ejected, seconds to come.
func (s *script) number(t *testing.T, i int, column, cell string) bool {
	v, snap := &s.view, s.view.Snapshot
	x := math.NaN()
	if cell != "?" && cell != "never" {
		var err error
		if x, err = strconv.ParseFloat(cell, 64); err != nil {
			t.Fatalf("column %s: %v", column, err)
		}
	}
	columns := map[string]Column{"waiting": snap.Waiting, "running": snap.Running, "kv": snap.KVUse, "kvTokens": snap.KVTokens,
		"inFlight": v.InFlight, "prefilling": v.Prefilling, "backlog": v.Backlog, "head": v.Head, "held": v.Held, "context": v.Context,
		"sentSince": v.SentSince, "match": v.Match, "errors": v.Errors}
	if c, ok := columns[column]; ok {
		c[i] = float32(x)
		return true
	}
	switch column {
	case "age":
		snap.ReadAt[i] = v.Now - x
		if cell == "never" {
			snap.ReadAt[i] = Never
		}
	case "headAge":
		v.HeadSince[i] = v.Now - x
	case "stepLeft":
		v.StepEnd[i] = v.Now + x
	case "coldAge":
		v.LastCold[i] = v.Now - x
	case "heard":
		v.LastByte[i] = v.Now - x
	case "ejected":
		v.EjectedUntil[i] = v.Now + x
	default:
		return false
	}
	return true
}

// run runs any command but endpoints.
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	v := &s.view
	v.Request = Request{Model: "m", PromptTokens: 1000, OutputTokens: 200, UnitTokens: 64}
	v.Seed, v.Turn, v.Alone, v.Busy, v.Home = 1, 0, 0, 0, 0
	profile, n := "latency", 6
	var weights map[string]float64
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "profile":
			profile = arg.Vals[0]
		case "weights":
			profile, weights = "weights", map[string]float64{}
			for _, val := range arg.Vals {
				name, w, _ := strings.Cut(val, "=")
				x, err := strconv.ParseFloat(w, 64)
				if err != nil {
					t.Fatalf("%s: weight %q: %v", d.Pos, val, err)
				}
				weights[name] = x
			}
		case "adapter":
			v.Request.Adapter = arg.Vals[0]
		case "holder":
			v.Request.Holder = arg.Vals[0]
		default:
			x, err := strconv.ParseFloat(arg.Vals[0], 64)
			if err != nil {
				t.Fatalf("%s: %s: %v", d.Pos, arg.Key, err)
			}
			s.setting(t, arg.Key, x, &n)
		}
	}
	p, err := Named(profile, weights)
	if err != nil {
		return err.Error() + "\n"
	}
	return s.command(t, d, p, n)
}

// setting sets a number of the request or of the View.
func (s *script) setting(t *testing.T, key string, x float64, n *int) {
	r := &s.view.Request
	switch key {
	case "prompt":
		r.PromptTokens = float32(x)
	case "output":
		r.OutputTokens = float32(x)
	case "units":
		r.Units = int(x)
	case "affinity":
		r.Affinity = uint64(x)
	case "missed":
		r.Missed = float32(x)
	case "guard":
		s.view.Guard = x > 0
	case "busy":
		s.view.Busy = float32(x)
	case "home":
		s.view.Home, s.view.SessionMS = int32(x), 50
	case "alone":
		s.view.Alone = float32(x)
	case "seed":
		s.view.Seed = uint64(x)
	case "turn":
		s.view.Turn = uint64(x)
	case "n":
		*n = int(x)
	default:
		t.Fatalf("argument %q is not known", key)
	}
}

func (s *script) command(t *testing.T, d *datadriven.TestData, p *Profile, n int) string {
	v := &s.view
	var out strings.Builder
	switch d.Cmd {
	case "explain":
		e := p.Explain(v)
		if err := e.WriteText(&out, v); err != nil {
			t.Fatal(err)
		}
	case "decide":
		decision := p.Decide(v)
		fmt.Fprintln(&out, s.name(decision.Endpoint), s.name(decision.Fallbacks[0]), s.name(decision.Fallbacks[1]))
		fmt.Fprintln(&out, p.Reason(v, decision))
	case "spread":
		counts := map[string]int{}
		for seed := range uint64(1000) {
			v.Seed = seed
			counts[s.name(p.Decide(v).Endpoint)]++
		}
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintln(&out, name, counts[name])
		}
	case "turns":
		var names []string
		for range n {
			names = append(names, s.name(p.Decide(v).Endpoint))
			v.Turn++
		}
		fmt.Fprintln(&out, strings.Join(names, " "))
	default:
		t.Fatalf("%s: command %q is not known", d.Pos, d.Cmd)
	}
	return out.String()
}

func (s *script) name(i int32) string {
	if i < 0 {
		return "-"
	}
	return s.view.Snapshot.Names[i]
}
