package sim

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// goals judges a row in which every figure of the default profile is ours(seed) and of another policy theirs(seed).
func goals(id string, other Policy, ours, theirs func(seed int) float64) []Goal {
	e := Experiment{Policies: []Policy{other, Latency()}, Seeds: 4, Replicas: 1}
	var runs []figures
	for _, of := range []func(int) float64{theirs, ours} {
		for seed := range e.Seeds {
			runs = append(runs, run(of(seed)))
		}
	}
	t := Table{Seeds: 4, Replicas: 1, Rows: []Line{e.line(Row{ID: id, Uniform: id == "A7"}, runs)}}
	return t.Goals()
}

// Each goal is met, missed or undecided: what is not sure never counts as met.
func TestGoals(t *testing.T) {
	just := func(x float64) func(int) float64 { return func(int) float64 { return x } }
	luck := func(seed int) float64 { return [...]float64{.8, 1.6, .7, 1.7}[seed] }
	f := func(id string, other Policy, ours, theirs func(int) float64, want string) {
		t.Helper()
		var got []string
		for _, g := range goals(id, other, ours, theirs) {
			got = append(got, fmt.Sprintf("%s %v", g.Row, g.Outcome))
		}
		if all := strings.Join(got, ", "); all != want {
			t.Errorf("%s against %s: got %q, want %q", id, other.Name, all, want)
		}
	}
	f("A1", Greedy(), just(1.09), just(1), "A1 met, A1 met") // near the yardstick; no rival there
	f("A1", Greedy(), just(1.11), just(1), "A1 missed, A1 met")
	f("A1", Greedy(), luck, just(1), "A1 undecided, A1 met")
	f("A7", RoundRobin(), just(1.02), just(1), "A7 met, A7 met")
	f("A7", RoundRobin(), just(1.04), just(1), "A7 missed, A7 met")
	f("B1", lmetric(), just(1.06), just(1), "B1 missed")
	f("B1", lmetric(), luck, just(1), "B1 undecided")
	f("B1", ExactLatency(), just(2), just(1), "B1 met") // the same rule with more knowledge is no rival
	f("C1", lmetric(), just(1.04), just(1), "C1 missed, C1 met")
	f("C1", lmetric(), just(1.02), just(1), "C1 met, C1 met")
	f("B1", lmetric(), func(int) float64 { return math.NaN() }, just(1), "B1 undecided")
}

// Another policy is better with a lower mean, or with a lower quantile that no higher mean pays for; that is noted, and
// so is what no goal is about.
func TestTradesAreNoLosses(t *testing.T) {
	line := func(mean, p50, e2e, good, unsure float64) *Table {
		p := Pair{Policy: "latency", To: "x", Good: Interval{good, good - .001, good + .001}}
		for m := range p.Ratios {
			p.Ratios[m] = Interval{1, .999, 1.001}
		}
		p.Ratios[MeanTTFT], p.Ratios[P50] = Interval{mean, mean - unsure, mean + unsure}, Interval{p50, p50 - .001, p50 + .001}
		p.Ratios[E2E] = Interval{e2e, e2e - .001, e2e + .001}
		return &Table{Replicas: 1, Rows: []Line{{ID: "B1", Pairs: []Pair{p}}}}
	}
	f := func(table *Table, want Outcome, notes string) {
		t.Helper()
		if goals := table.Goals(); len(goals) != 1 || goals[0].Outcome != want {
			t.Errorf("got %+v, want %v", goals, want)
		}
		var got []string
		for _, n := range table.Notes() {
			got = append(got, n.Row+" "+n.Text)
		}
		if all := strings.Join(got, "; "); all != notes {
			t.Errorf("got notes %q, want %q", all, notes)
		}
	}
	f(line(1.05, 1.05, 1, 0, .001), Met, "") // theirs is lower by 4.8 %
	f(line(1.06, 1, 1, 0, .001), Missed, "")
	f(line(1, 1.06, 1, 0, .001), Missed, "")
	f(line(.98, 1.06, 1, 0, .001), Missed, "") // a mean higher by 2 % is noise
	f(line(.5, 1.06, 1, 0, .001), Met, "B1 x: better at P50 (ours +6.0% (+5.9…+6.1)), worse in the mean (ours -50.0% (-50.1…-49.9))")
	f(line(.9, 1.06, 1, 0, .2), Open, "B1 x: better at P50 (ours +6.0% (+5.9…+6.1)), worse in the mean (ours -10.0% (-30.0…+10.0))")
	f(line(1, 1, 1.06, -.06, .001), Met, "B1 x: better in E2E (ours +6.0% (+5.9…+6.1)), good requests (ours -6.0 points)")
}

// Two columns of which one is won are not enough; fewer good requests miss a goal.
func TestColumnsGoal(t *testing.T) {
	line := func(id string, mean, good float64) Line {
		p := Pair{Policy: "latency", To: "x", Good: Interval{good, good - .001, good + .001}}
		for m := range p.Ratios {
			p.Ratios[m] = Interval{mean, mean - .001, mean + .001}
		}
		return Line{ID: id, Pairs: []Pair{p}}
	}
	f := func(want Outcome, lines ...Line) {
		t.Helper()
		table := Table{Replicas: 1, Rows: lines}
		all := table.Goals()
		if got := all[len(all)-1]; got.Row != "C" || got.Outcome != want {
			t.Errorf("got %+v, want %v", got, want)
		}
	}
	f(Met, line("C1", .9, 0), line("C2", .8, 0), line("C3", 1, 0))
	f(Missed, line("C1", .9, 0), line("C2", 1, 0), line("C3", 1, 0))
	unsure := line("C2", .9, 0)
	unsure.Pairs[0].Ratios[MeanTTFT].High = 1.2
	f(Open, line("C1", .9, 0), unsure)
	table := Table{Replicas: 1, Rows: []Line{line("C1", .9, -.04)}}
	if got := fmt.Sprint(table.Goals()[0].Outcome, table.Goals()[1].Outcome); got != "missed met" { // 4 points are more than 3
		t.Errorf("got %s", got)
	}
}

// Times to first token are normal again after the last window that is above twice the mean of before.
func TestRecovery(t *testing.T) {
	r := Result{shocked: seconds(100)}
	add := func(at, ttft float64) { r.counted = append(r.counted, outcome{arrived: seconds(at), ttft: ttft}) }
	if got := r.windows().recovery(); !math.IsNaN(got) {
		t.Errorf("nothing before: got %v", got)
	}
	for at := 50.; at < 100; at++ {
		add(at, .1)
	}
	add(101, 5)
	add(104.5, .3)
	add(106.5, .19)
	if got := r.windows().recovery(); got != 6 {
		t.Errorf("got %v s, want 6: of the windows of 2 s the third is the last above .2", got)
	}
	add(60.5, 1) // a window before had been that bad
	if got := r.windows().recovery(); got != 2 {
		t.Errorf("got %v s, want 2", got)
	}
}

// Runs are taken together, so that a window counts by all that arrived in it, and the interval is of runs drawn anew.
func TestRecoveryOfAllRuns(t *testing.T) {
	run := func(slow float64) figures {
		r := Result{shocked: seconds(100)}
		for at := 50.; at < 140; at++ {
			r.counted = append(r.counted, outcome{arrived: seconds(at), ttft: .1})
		}
		r.counted = append(r.counted, outcome{arrived: seconds(100.5), ttft: 5}, outcome{arrived: seconds(130), ttft: slow})
		return r.figures(DefaultObjective())
	}
	runs := []figures{run(1.5), run(.1), run(.1), run(.1), run(.1), run(.1)}
	if got := runs[0].windows.recovery(); got != 32 {
		t.Errorf("one run: got %v s, want 32", got)
	}
	if got := recovery(runs); got.Mean != 2 || got.Low != 2 || got.High != 32 {
		t.Errorf("all: got %+v, want 2 s, at times 32", got)
	}
	if got := recovery([]figures{run(.1)}); got.Mean != 2 || !math.IsNaN(got.Low) {
		t.Errorf("a single run: got %+v, want 2 s without an interval", got)
	}
	if got := recovery([]figures{{windows: newWindows()}}); !math.IsNaN(got.Mean) {
		t.Errorf("no shock: got %+v", got)
	}
}

// A flooded engine has the backlog that was asked for, has forgotten what nobody uses, and its sequences are nobody's.
func TestFlood(t *testing.T) {
	row := Row{Engines: engines("l8-h100", 2), Requests: prefixes(5, 2, 2048)}
	r := Run(Options{Engines: row.Engines, Requests: row.Requests(1, seconds(60)), Policy: Latency(), Warm: seconds(10), Until: seconds(60), Seed: 1,
		Faults: []Fault{{seconds(40), 0, Flooded, 3}, {seconds(40), 1, Flooded, 3}}})
	if r.Failed > 0 || r.Unfinished > 0 || r.shocked != seconds(40) {
		t.Errorf("got %d failed, %d unfinished, flooded at %v", r.Failed, r.Unfinished, r.shocked)
	}
	worst := 0.
	for _, o := range r.counted {
		worst = max(worst, o.ttft)
	}
	if worst < 2.5 || worst > 4 {
		t.Errorf("the longest wait was %.2f s, want about the 3 s of the flood", worst)
	}
	w := newRig(Latency(), 1).w
	s := Seq{Prompt: 320, Output: 1, Blocks: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}}
	e := w.engines[0]
	e.Submit(0, &s)
	at, _ := e.Next()
	e.Step(at)
	if held, _ := e.cache.match(s.Blocks, 20); held != 20 {
		t.Fatalf("got %d blocks held, want 20", held)
	}
	w.flood(e, .1)
	if held, _ := e.cache.match(s.Blocks, 20); held != 0 || e.Waiting()+e.Running() != 2 { // 77 ms each
		t.Errorf("got %d blocks held and %d prompts, want none and 2", held, e.Waiting()+e.Running())
	}
}

// Suites are found by their names, and no row is in two.
func TestSuites(t *testing.T) {
	letters, err := SelectSuites([]string{"all"})
	if err != nil || strings.Join(letters, "") != "ABCVHRL" {
		t.Errorf("got %v, %v", letters, err)
	}
	if letters, err := SelectSuites([]string{"recovery", "rows"}); err != nil || strings.Join(letters, "") != "AR" {
		t.Errorf("got %v, %v", letters, err)
	}
	if _, err := SelectSuites([]string{"all", "odd"}); err == nil || !strings.Contains(err.Error(), "known are all, rows") {
		t.Errorf("got %v", err)
	}
	seen := make(map[string]bool)
	for _, s := range Suites() {
		for _, r := range s.Rows {
			if seen[r.ID] || seen[r.Name] || !strings.HasPrefix(r.ID, s.Letter) {
				t.Errorf("suite %s has %s, %q", s.Name, r.ID, r.Name)
			}
			seen[r.ID], seen[r.Name] = true, true
		}
	}
}

// However long names are, a table is at most 120 columns wide in every view.
func TestTableIsNarrow(t *testing.T) {
	e := Experiment{Policies: Policies(), Seeds: 2, Replicas: 1}
	var runs []figures
	shocked := newWindows()
	shocked.before[-1], shocked.after[5] = window{1, 1}, window{3, 1}
	for i := range e.Policies {
		for seed := range e.Seeds {
			f := run(float64(1 + i*seed))
			f.windows, f.of[Tokens], f.open = shocked, 123456, [measures]bool{true, true, true, true}
			runs = append(runs, f)
		}
	}
	views, err := SelectViews([]string{"all"})
	if err != nil {
		t.Fatal(err)
	}
	table := Table{Rows: []Line{e.line(Row{ID: "A1", Name: "a row"}, runs)}}
	for _, line := range strings.Split(table.Text(views), "\n") {
		if n := len([]rune(line)); n > tableWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if _, err := SelectViews([]string{"odd"}); err == nil {
		t.Error("no error for odd measures")
	}
}
