package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func table(t *testing.T, e Experiment) *Table {
	t.Helper()
	table, err := e.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// Experiment A in short: in every row the default profile is about as good as knowing everything, and better than round
// robin, least requests and weights where those differ; without labels as with them. The gateway hears of tokens as late
// as sluice bench has it by default.
func TestLatencyIsAsGoodAsKnowingAll(t *testing.T) {
	rows := map[bool][]Row{false: RowsA(), true: RowsA()[:3]} // the others have one kind of GPU, labelled or not
	length := 90 * time.Second
	if underRace { // which has nothing more to find in more of them
		rows = map[bool][]Row{false: {RowsA()[0], RowsA()[5]}}
	}
	for labels, rows := range rows {
		for _, row := range table(t, Experiment{Rows: rows, Labels: labels, For: length, Seeds: 4, Scrape: 200 * time.Millisecond, Wire: 2 * time.Millisecond}).Rows {
			for _, p := range row.Pairs {
				limits := [...]float64{MeanTTFT: 1.05, P50: math.Inf(1), P95: 1.05}
				if p.To == Greedy().Name {
					limits = [...]float64{MeanTTFT: 1.1, P50: 1.1, P95: 1.15}
				}
				for m, limit := range limits {
					if !(p.Ratios[m].Mean <= limit) {
						t.Errorf("%s, labels %v, against %s: got %s %s", row.Name, labels, p.To, measureNames()[m], p.Text(Measure(m)))
					}
				}
			}
		}
	}
}

// tiny is two engines under a little too much.
func tiny() Row {
	return Row{ID: "tiny", Name: "two A10G", Engines: engines("l8-a10g", 2), Length: 40 * time.Second,
		Requests: Mix{Rate: Steady(2.4), Prompt: Length{600, .5}, Output: Length{50, .5}, Prefixes: 2, PrefixTokens: 512}.Generate}
}

// A table is the same to the last digit, whatever it is printed like and however many runs there are at a time; its
// progress counts every run.
func TestTable(t *testing.T) {
	e := Experiment{Rows: []Row{tiny()}, Policies: []Policy{RoundRobin(), LeastRequests(), Greedy()}, Seeds: 3, Workers: 1}
	const want = `tiny  two A10G
                               mean           P50           P95           P99   TPOT    E2E   tok/s   good   hits   lost
  round robin          .2577 ±.0583  .2076 ±.0399  .5709 ±.3800  .7436 ±.7176  .0411   2.24     110  87.6%  43.4%   0.0%
  least requests       .2675 ±.0249  .2210 ±.0117  .5534 ±.0342  .7316 ±.2971  .0406   2.24     110  89.9%  43.4%   0.0%
  all-knowing greedy   .2519 ±.0499  .2106 ±.0329  .5096 ±.1149  .7064 ±.5247  .0416   2.24     111  85.4%  43.1%   0.0%

`
	if diff := cmp.Diff(want, table(t, e).String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	e.Policies, e.Workers = []Policy{Latency(), RoundRobin()}, 1
	first, err := json.Marshal(table(t, e))
	if err != nil {
		t.Fatal(err)
	}
	var progress []int
	e.Workers, e.Progress = 4, func(done, of int, _ time.Duration) { progress = append(progress, done*100+of) }
	second, err := json.Marshal(table(t, e))
	if err != nil || string(first) != string(second) {
		t.Errorf("one worker made %s, four %s, %v", first, second, err)
	}
	if want := []int{6, 106, 206, 306, 406, 506, 606}; !slices.Equal(progress, want) {
		t.Errorf("got progress %v, want %v", progress, want)
	}
	if !json.Valid(first) || !strings.Contains(string(first), `"against":"round robin"`) {
		t.Errorf("got %s", first)
	}
}

func TestExperimentEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	e := Experiment{Rows: []Row{tiny()}, Seeds: 100, Workers: 2, Progress: func(done, _ int, _ time.Duration) {
		if done == 2 {
			cancel()
		}
	}}
	if table, err := e.Run(ctx); !errors.Is(err, context.Canceled) || table != nil {
		t.Errorf("got %v, %v; want no table, and the context's error", table, err)
	}
	e.For = warmUp
	if _, err := e.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "don't count") {
		t.Errorf("no longer than the warm-up: got %v", err)
	}
}

// A policy that has no chance stops after four seeds, says so, and is compared in these; the figures of the others are
// the same as without it.
func TestHopelessPoliciesStop(t *testing.T) {
	row := Row{ID: "uneven", Name: "an H100 and an A10G", Engines: append(engines("l8-h100", 1), engines("l8-a10g", 1)...), Length: 30 * time.Second, Requests: mixed(8)}
	e := Experiment{Rows: []Row{row}, Policies: []Policy{RoundRobin(), Latency()}, Seeds: 6, Labels: true}
	last := 0
	e.Progress = func(done, of int, _ time.Duration) {
		if last = done; of > 12 || done > of {
			t.Errorf("%d of %d runs done", done, of)
		}
	}
	got := table(t, e)
	if l := &got.Rows[0]; last != 10 || !slices.Equal(l.Hopeless, []string{"round robin"}) || !strings.Contains(got.String(), "4 seeds only: hopeless") {
		t.Errorf("%d runs, hopeless %v:\n%s", last, l.Hopeless, got)
	}
	if m := got.Rows[0].Cells[0].Figures[MeanTTFT]; m.Mean < 10*got.Rows[0].Cells[1].Figures[MeanTTFT].Mean {
		t.Errorf("round robin's mean is %v", m)
	}
	e.Policies = []Policy{Latency()}
	if alone := table(t, e).Rows[0].Cells[0]; alone.Figures[MeanTTFT] != got.Rows[0].Cells[1].Figures[MeanTTFT] {
		t.Errorf("got %v alone, %v beside", alone.Figures[MeanTTFT], got.Rows[0].Cells[1].Figures[MeanTTFT])
	}
	if s := got.Standing(); !strings.Contains(s, "| uneven |") || !strings.Contains(s, "| – | round robin: ") {
		t.Errorf("got %s", s)
	}
}

// run is the figures of a run whose times to first token are all x.
func run(x float64) figures {
	f := figures{curve: make([]float64, curvePoints)}
	for m := range E2E99 + 1 {
		f.of[m] = x
	}
	return f
}

// A verdict takes differences for what they are: noise, chance, or worse.
func TestVerdict(t *testing.T) {
	e := Experiment{Policies: []Policy{RoundRobin(), Weights(), Latency(), Greedy()}, Seeds: 4, Replicas: 1}
	f := func(want string, factors ...func(seed int) float64) {
		t.Helper()
		var runs []figures
		for _, factor := range factors {
			for seed := range e.Seeds {
				runs = append(runs, run(factor(seed)*float64(1+seed)))
			}
		}
		if l := e.line(Row{}, runs); l.Verdict != want {
			t.Errorf("got  %q\nwant %q", l.Verdict, want)
		}
	}
	just := func(x float64) func(int) float64 { return func(int) float64 { return x } }
	luck := func(seed int) float64 { return [...]float64{.5, 2, .6, 2}[seed] }
	f("latency beats round robin; equals weights 2/2/3, all-knowing greedy", just(2), just(1.12), just(1.1), just(1.09))
	f("latency is undecided against weights 2/2/3 (mean -4.5%, P50 -4.5%, P95 -4.5%); "+
		"loses to round robin (mean +4.0%, P50 +4.0%, P95 +4.0%), all-knowing greedy (mean ×10, P50 ×10, P95 ×10)", just(1/1.04), luck, just(1), just(.1))

	e.Policies = []Policy{RoundRobin(), Greedy()}
	if l := e.line(Row{}, make([]figures, 8)); l.Verdict != "" || l.Pairs != nil {
		t.Errorf("without the default profile: got %+v, want no comparison", l)
	}
	never := run(60)
	for m := range never.open {
		never.open[m] = true
	}
	for want, runs := range map[string][2]figures{"latency beats x": {run(1), never}, "latency loses to x (mean ×60, P50 ×60, P95 ×60)": {never, run(1)},
		"latency is undecided against x (mean -40.0%, P50 -40.0%, P95 -40.0%)": {never, run(100)}} {
		p := pair("latency", "x", []figures{runs[0], runs[0]}, []figures{runs[1], runs[1]})
		if text := verdict([]Pair{p}); text != want {
			t.Errorf("got %q, want %q", text, want)
		}
	}
	bound := pair("latency", "x", []figures{run(1), run(1)}, []figures{never, never})
	if got := bound.Text(P50); got != "÷60 or better" {
		t.Errorf("against a lower bound: got %q, want no interval", got)
	}
	above := pair("latency", "x", []figures{run(90)}, []figures{never})
	if got := above.Text(P50); got != "unknown" {
		t.Errorf("above a lower bound: got %q, want unknown", got)
	}
}

// Figures of requests that never had a first token are lower bounds, and say so.
func TestFiguresAreBounds(t *testing.T) {
	r := &Result{Unfinished: 1, tokensPerSecond: 5, busy: []float64{3, 1}}
	r.counted = []outcome{{ttft: .0123, tpot: .01, e2e: 2, answered: true, finished: true}, {ttft: 3, tpot: .03, e2e: 4, answered: true, finished: true},
		{ttft: 60, tpot: math.NaN(), e2e: 60}, {ttft: .5, tpot: math.NaN(), e2e: 6, answered: true, finished: true}}
	r.sort()
	f := r.figures(DefaultObjective())
	got := fmt.Sprintf("%.4v %v", f.of, f.curve[curvePoints-1])
	// A mean TTFT of (.0123 + 3 + 60 + .5)/4 and so on; half of the requests are good; an endpoint was busy for 3 s where the mean is 2.
	const want = "[15.88 1.75 51.45 58.29 0.02 0.02 0.029 0.0298 18 5 51.9 58.38 0.5 5 0 1.5 0.25 NaN] +Inf"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if f.open != [measures]bool{MeanTTFT: true, E2E: true} {
		t.Errorf("got bounds %v, want the means alone: the quantiles are below the longest", f.open)
	}
	r.counted[2].ttft = 1 // it arrived late: what is beyond may be more
	if f := r.figures(DefaultObjective()); !f.open[P95] || !f.open[P50] == (f.of[P50] >= 1) {
		t.Errorf("got %v, %v", f.of, f.open)
	}
	text := (&Cell{Figures: [measures]Interval{MeanTTFT: {2, 1.5, 2.5}, P50: {.01234, math.NaN(), math.NaN()}, Lost: {Mean: .25}},
		AtLeast: [measures]bool{MeanTTFT: true}})
	for m, want := range map[Measure]string{MeanTTFT: ">2.00 ±.5000", P50: ".0123", Lost: "25.0%"} {
		if got := text.Text(m); got != want {
			t.Errorf("%s: got %q, want %q", measureNames()[m], got, want)
		}
	}
}

// Intervals as in any textbook: five values 1 to 5 have s = √2.5 and t = 2.776.
func TestInterval(t *testing.T) {
	about := func(got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= .001*math.Abs(want)) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	i := Mean([]float64{1, 2, 3, 4, 5})
	about(i.Mean, 3)
	about(i.High-3, 1.9634)
	about(3-i.Low, 1.9634)
	r := Ratio([]float64{2, 8}, []float64{2, 2}) // logarithms 0 and ln 4: mean ln 2, standard error ln 2
	about(r.Mean, 2)
	about(r.High, 2*math.Pow(2, 12.706))
	about(1/r.Low, r.High/4)
	one := Mean([]float64{7})
	if one.Mean != 7 || !math.IsNaN(one.Low) || !math.IsNaN(one.High) {
		t.Errorf("of one value: got %+v", one)
	}
	for freedom, want := range map[int]float64{1: 12.706, 10: 2.2281, 11: 2.2010, 19: 2.0930, 30: 2.0423, 100: 1.9840, 1000: 1.9623} {
		about(student(freedom), want)
	}
	if text, err := json.Marshal(one); err != nil || string(text) != `{"mean":7,"low":null,"high":null}` {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestSelect(t *testing.T) {
	rows, err := SelectRows([]string{"a7", "A1", "B"})
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	if err != nil || fmt.Sprint(ids) != "[A7 A1 B1 B2 B3 B4 B5]" {
		t.Errorf("got %v, %v", ids, err)
	}
	for _, bad := range []string{"", "A8", "X"} {
		if _, err := SelectRows([]string{bad}); err == nil {
			t.Errorf("row %q: no error", bad)
		}
	}
	if _, err := SelectPolicies([]string{"best"}); err == nil || !strings.Contains(err.Error(), "known are") {
		t.Errorf("policy best: got %v", err)
	}
}

// Workloads and traces make rows that draw requests until the end, on the fleet asked for.
func TestRows(t *testing.T) {
	fleet, err := ParseFleet("l8-h100=1,l8-a10g=2")
	if err != nil || len(fleet) != 3 || fleet[2].Profile.Name != "l8-a10g" {
		t.Fatalf("got %+v, %v", fleet, err)
	}
	for _, kind := range []string{"mixed", "bursts", "prefixes", "uniform", "chat", "agents"} {
		row, err := WorkloadRow(kind, 50, fleet)
		if err != nil {
			t.Fatal(err)
		}
		first := 0
		for _, r := range row.Requests(1, 20*time.Second) {
			if r.Follows < 0 {
				first++
			}
		}
		if first < 700 || first > 1300 || row.Name != "1×l8-h100 + 2×l8-a10g, "+kind+", 50/s" {
			t.Errorf("%s: got %d first requests in 20 s at 50/s, name %q", kind, first, row.Name)
		}
	}
	if row, err := WorkloadRow("uniform", 0, nil); err != nil || row.Name != "4×l70-h100x8, uniform, 35/s" {
		t.Errorf("got %q, %v", row.Name, err)
	}
	for kind, rate := range map[string]float64{"nonsense": 1, "mixed": -1, "chat": math.NaN(), "agents": math.Inf(1)} {
		if _, err := WorkloadRow(kind, rate, nil); err == nil {
			t.Errorf("%s at %v: no error", kind, rate)
		}
	}
	text := []byte("{\"timestamp\": 0, \"input_length\": 9}\n{\"timestamp\": 9000, \"input_length\": 9}\n")
	row, err := TraceRow("t.jsonl", text, 1, fleet)
	if err != nil || len(row.Requests(2, row.Length)) != 2 || len(row.Requests(2, 8*time.Second)) != 1 {
		t.Errorf("got %+v, %v", row, err)
	}
	for _, bad := range []string{"", "{", "\n"} {
		if _, err := TraceRow("t.jsonl", []byte(bad), 1, fleet); err == nil || !strings.Contains(err.Error(), "t.jsonl") {
			t.Errorf("trace %q: got %v", bad, err)
		}
	}
}

// Whatever a fleet is called, reading it gives an error or engines of known profiles, as many as allowed.
func FuzzParseFleet(f *testing.F) {
	for _, seed := range []string{"l8-h100=4,l8-a10g=4", "l8-h100", "=1", "l8-h100=0", "l8-h100=99999", "l8-h100=6000,l8-h100=6000", "nonsense=1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fleet, err := ParseFleet(text)
		if (err == nil) != (len(fleet) > 0) || len(fleet) > maxEngines {
			t.Fatalf("%q: got %d engines, %v", text, len(fleet), err)
		}
	})
}
