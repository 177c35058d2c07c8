package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/sim"
)

// board counts how one side of the demo does. Its methods may be called by any goroutine.
type board struct {
	mu      sync.Mutex
	ttft    []first           // of requests that had a first token, or ended without
	waiting map[int]time.Time // since when requests without one have waited
	failed  int               // requests that ended without a first token
	broken  int               // requests that ended after it, too early
	done    int
	running int
	output  int
	prompt  int
	cached  int
	// expected are the prompt tokens that the gateway expected in caches, of the prompts told.
	expected, told int
	// came is how many tokens came in each second, by its number.
	came map[int64]int
}

// first is when a first token came, after so many seconds; +Inf where the request failed without one.
type first struct {
	at    time.Time
	after float64
}

func newBoard() *board {
	return &board{waiting: make(map[int]time.Time), came: make(map[int64]int)}
}

func (b *board) sent(i int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[i] = now
	b.running++
}

func (b *board) first(i int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if since, ok := b.waiting[i]; ok {
		b.ttft = append(b.ttft, first{now, now.Sub(since).Seconds()})
		delete(b.waiting, i)
	}
}

func (b *board) end(p sim.Played, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(p.Err, context.DeadlineExceeded) || errors.Is(p.Err, context.Canceled) {
		return // the demo ends; what runs then goes on running in the figures
	}
	b.running--
	if _, ok := b.waiting[p.Index]; ok && p.Err != nil {
		delete(b.waiting, p.Index)
		b.ttft = append(b.ttft, first{now, math.Inf(1)})
		b.failed++
		return
	}
	if p.Err != nil {
		b.broken++
	} else {
		b.done++
	}
	b.prompt += p.Usage.PromptTokens
	b.cached += p.Usage.CachedTokens
}

// asked takes what the gateway expected of a request that has ended.
func (b *board) asked(e front.Ended) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected += e.ExpectedTokens
	b.told += e.PromptTokens
}

// tokens counts tokens as they come, of answers that end well, badly or not yet.
func (b *board) tokens(n int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.output += n
	b.came[now.Unix()] += n
}

// summary is what a board says at one moment.
type summary struct {
	// p50, p95 and p99 are times to first token in seconds over all requests sent. One that still waits counts with the time it has waited, so it is a lower bound;
	// one that failed is worse than any.
	p50, p95, p99 float64
	// lately50 and lately95 are the same of the last ten seconds: of first tokens in them, and of what still waits.
	lately50, lately95 float64
	// tokensPerSecond is of the last seconds, or since the start for the final summary.
	tokensPerSecond float64
	// hits is the share of prompt tokens that came from a cache, NaN before the first answer.
	hits float64
	// expected is the share that the gateway expected there.
	expected                               float64
	done, running, waiting, failed, broken int
}

// recently is how many seconds the running rate of tokens looks back, lately is how many percentiles do.
const recently, lately = 5, 10

func (b *board) summary(start, now time.Time, final bool) summary {
	b.mu.Lock()
	defer b.mu.Unlock()
	all, late := make([]float64, 0, len(b.ttft)+len(b.waiting)), []float64{}
	for _, f := range b.ttft {
		all = append(all, f.after)
		if now.Sub(f.at).Seconds() <= lately {
			late = append(late, f.after)
		}
	}
	for _, since := range b.waiting {
		all, late = append(all, now.Sub(since).Seconds()), append(late, now.Sub(since).Seconds())
	}
	slices.Sort(all)
	slices.Sort(late)
	s := summary{p50: at(all, .5), p95: at(all, .95), p99: at(all, .99), lately50: at(late, .5), lately95: at(late, .95),
		hits: float64(b.cached) / float64(b.prompt), expected: float64(b.expected) / float64(b.told), done: b.done, running: b.running, waiting: len(b.waiting), failed: b.failed, broken: b.broken}
	tokens, span := 0, min(recently, now.Sub(start).Seconds())
	maps.DeleteFunc(b.came, func(second int64, n int) bool {
		if old := now.Unix()-second > recently; old {
			return true
		}
		if second < now.Unix() { // the present second has only begun
			tokens += n
		}
		return false
	})
	if final {
		tokens, span = b.output, now.Sub(start).Seconds()
	}
	s.tokensPerSecond = float64(tokens) / span
	return s
}

// at is the percentile q of sorted values, NaN of none.
func at(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// table is the summaries side by side, a line each under a heading, with as many columns as fit the width; 0 means all. The final one is
// without those of the last ten seconds.
func table(names []string, sides []summary, width int, final bool) []string {
	rows := [][]string{{"", "TTFT P50", "P95", "P99", "10 s P50", "P95", "failed", "hits", "expected", "tokens/s", "cut", "done", "running", "no token yet"}}
	for i, s := range sides {
		rows = append(rows, []string{names[i], seconds(s.p50), seconds(s.p95), seconds(s.p99), seconds(s.lately50), seconds(s.lately95),
			fmt.Sprint(s.failed), percent(s.hits), percent(s.expected), fmt.Sprintf("%.0f", s.tokensPerSecond), fmt.Sprint(s.broken), fmt.Sprint(s.done), fmt.Sprint(s.running), fmt.Sprint(s.waiting)})
	}
	if final {
		for i, r := range rows {
			rows[i] = slices.Delete(r, 4, 6)
		}
	}
	lines := aligned(rows)
	for width > 0 && len([]rune(lines[0])) >= width && len(rows[0]) > 4 {
		for i, r := range rows {
			rows[i] = r[:len(r)-1]
		}
		lines = aligned(rows)
	}
	return lines
}

// aligned sets rows in columns: the first to the left, the others to the right.
func aligned(rows [][]string) []string {
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for k, cell := range r {
			width[k] = max(width[k], len([]rune(cell)))
		}
	}
	var lines []string
	for _, r := range rows {
		var line strings.Builder
		for k, cell := range r {
			pad := strings.Repeat(" ", width[k]-len([]rune(cell)))
			if k == 0 {
				line.WriteString(cell + pad)
			} else {
				line.WriteString("  " + pad + cell)
			}
		}
		lines = append(lines, line.String())
	}
	return lines
}

// seconds writes a time to first token for people: three digits and a unit.
func seconds(x float64) string {
	switch {
	case math.IsNaN(x):
		return "-"
	case math.IsInf(x, 1):
		return "never"
	case x < 1:
		return fmt.Sprintf("%.0f ms", 1000*x)
	case x < 10:
		return fmt.Sprintf("%.2f s", x)
	}
	return fmt.Sprintf("%.1f s", x)
}

func percent(x float64) string {
	if math.IsNaN(x) {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*x)
}

// verdict says in a sentence what the table shows.
func verdict(names []string, s []summary) string {
	better := func(a, b float64) string {
		switch {
		case math.IsNaN(a) || math.IsNaN(b) || a <= 0:
			return "-"
		case math.IsInf(b, 1):
			return "beyond measure"
		}
		return fmt.Sprintf("%.1f×", b/a)
	}
	return fmt.Sprintf("Time to first token of %s over %s: %s at P50, %s at P95, %s at P99.", names[1], names[0],
		better(s[0].p50, s[1].p50), better(s[0].p95, s[1].p95), better(s[0].p99, s[1].p99))
}

// byName finds a scenario.
func byName(name string) (scenario, error) {
	all := scenarios()
	i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
	if i < 0 {
		var names []string
		for _, s := range all {
			names = append(names, s.name)
		}
		return scenario{}, fmt.Errorf("cannot play scenario %q: known are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// scenario is a fleet, its traffic, and what happens to it.
type scenario struct {
	name, says string
	// engines are profiles of the simulator, in the order of the fleet.
	engines []string
	mix     sim.Mix
	// adapters is how many LoRA adapters there are, slots how many fit on an engine.
	adapters, slots int
	// unlabelled says that the gateway isn't told which GPU is which.
	unlabelled bool
	// faults: one server dies and another freezes while it runs.
	faults bool
}

// scenarios lists what the demo can play. The fleets are 4 like an H100 and 4 like an A10G where nothing else is said.
func scenarios() []scenario {
	mixed := append(slices.Repeat([]string{"l8-h100"}, 4), slices.Repeat([]string{"l8-a10g"}, 4)...)
	chat := sim.Mix{Rate: sim.Steady(30), Prompt: sim.Length{Mean: 600, Sigma: .8}, Output: sim.Length{Mean: 150, Sigma: .8}}
	uniform, lora, prefix := chat, chat, chat
	chat.Prefixes, chat.PrefixTokens, chat.Prompt.Mean = 16, 512, 300
	bursts := chat
	bursts.Rate = sim.Bursts(25, 3, 2, 10)
	prefix.Rate, prefix.Prefixes, prefix.PrefixTokens, prefix.Prompt.Mean = sim.Steady(20), 24, 2048, 250
	uniform.Rate = sim.Steady(40)
	lora.Rate = sim.Steady(25)
	return []scenario{
		{name: "mixed", says: "two GPU generations behind one address, chats under 16 system prompts", engines: mixed, mix: chat},
		{name: "unlabelled", says: "the same, and no label says which server has which GPU: the gateway finds out", engines: mixed, mix: chat, unlabelled: true},
		{name: "bursty", says: "the same fleet; traffic comes in bursts of two seconds", engines: mixed, mix: bursts},
		{name: "prefix", says: "the same fleet; 24 system prompts of 2048 tokens, some more popular than others", engines: mixed, mix: prefix},
		{name: "uniform", says: "eight equal GPUs and steady traffic: round robin's best case", engines: slices.Repeat([]string{"l8-h100"}, 8), mix: uniform},
		{name: "lora", says: "16 adapters, of which four fit on a GPU at once", engines: mixed, mix: lora, adapters: 16, slots: 4},
		{name: "failure", says: "the mixed fleet; after a third of the time one server dies, after two thirds another freezes", engines: mixed, mix: chat, faults: true},
	}
}
