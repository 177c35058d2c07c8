package sim

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// Every rate gives as many arrivals as it says, and where it says.
func TestRates(t *testing.T) {
	count := func(r Rate, cv float64, from, to float64) float64 {
		n := 0.
		for _, at := range r.Arrivals(rand.New(rand.NewPCG(1, 1)), 1000, cv) {
			if math.Mod(at, 10) >= from && math.Mod(at, 10) < to {
				n++
			}
		}
		return n
	}
	for name, c := range map[string]struct {
		rate       Rate
		cv         float64
		from, to   float64
		want, give float64
	}{
		"steady":             {Steady(20), 0, 0, 10, 20000, .03},
		"clumps":             {Steady(20), 3, 0, 10, 20000, .08},
		"bursts in all":      {Bursts(20, 4.5, 2, 10), 0, 0, 10, 20000, .03},
		"bursts, first 2 s":  {Bursts(20, 4.5, 2, 10), 0, 0, 2, 18000, .03},
		"ramp":               {Ramp(0, 40, 1000), 0, 0, 10, 20000, .03},
		"diurnal":            {Diurnal(20, .5, 10), 0, 0, 10, 20000, .03},
		"diurnal, rise side": {Diurnal(20, .5, 10), 0, 0, 5, 10000 * (1 + .5*2/math.Pi), .03},
	} {
		if got := count(c.rate, c.cv, c.from, c.to); math.Abs(got-c.want) > c.give*c.want {
			t.Errorf("%s: got %v arrivals, want about %.0f", name, got, c.want)
		}
	}
}

// Clumps are clumps: the variance of counts in short windows is that of the coefficient of variation.
func TestClumps(t *testing.T) {
	spread := func(cv float64) float64 {
		var n [1000]float64
		for _, at := range Steady(50).Arrivals(rand.New(rand.NewPCG(2, 2)), 1000, cv) {
			n[int(at)]++
		}
		sum := 0.
		for _, x := range n {
			sum += (x - 50) * (x - 50)
		}
		return sum / 1000 / 50
	}
	if poisson, clumps := spread(1), spread(3); poisson > 1.3 || clumps < 5 || clumps > 12 {
		t.Errorf("variance over mean: got %.1f for Poisson and %.1f for cv 3, want about 1 and 9", poisson, clumps)
	}
}

func TestLengthHasItsMean(t *testing.T) {
	rng, sum := rand.New(rand.NewPCG(1, 1)), 0.
	for range 100000 {
		sum += float64(Length{600, .8}.draw(rng))
	}
	if mean := sum / 100000; math.Abs(mean-600) > 12 {
		t.Errorf("got mean %.0f, want 600", mean)
	}
}

// Requests share exactly the blocks of what they share, and a conversation's next prompt begins with its last one and
// the answer.
func TestHashesAreShared(t *testing.T) {
	shared := func(a, b []uint64) int {
		n := 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	first := Request{Prompt: []Segment{{1, 100}, {2, 60}}, Reply: 3, Output: 40}
	second := Request{Prompt: []Segment{{1, 100}, {2, 60}, {3, 40}, {4, 30}}, Reply: 5, Output: 10}
	other := Request{Prompt: []Segment{{1, 100}, {6, 60}}, Reply: 7, Output: 40}
	a, b, c := first.appendHashes(nil), second.appendHashes(nil), other.appendHashes(nil)
	if len(a) != 200/BlockTokens || shared(a, b) != 200/BlockTokens || shared(a, c) != 100/BlockTokens {
		t.Errorf("got %d blocks, %d shared with the next turn, %d with another; want 12, 12, 6", len(a), shared(a, b), shared(a, c))
	}
	for i, r := range Agents(Steady(1)).Generate(1, 20*time.Second) {
		if r.Follows >= i || r.Output < 1 || r.PromptTokens() < 1 {
			t.Fatalf("request %d: %+v", i, r)
		}
	}
}

func TestTrace(t *testing.T) {
	text := `{"timestamp": 3000, "input_length": 1200, "output_length": 50, "hash_ids": [0, 1, 2]}

{"timestamp": 0, "input_length": 600, "output_length": 0, "hash_ids": [0]}
`
	got, err := ReadTrace(strings.NewReader(text), 2, 1)
	if err != nil || len(got) != 2 {
		t.Fatalf("got %d requests, %v", len(got), err)
	}
	early, late := got[0], got[1]
	if early.At >= 1500*time.Millisecond || late.At < 1500*time.Millisecond || early.PromptTokens() != 600 || late.PromptTokens() != 1200 ||
		early.Output != 1 || early.Prompt[0] != late.Prompt[0] || len(early.Prompt) != 2 || late.Prompt[2].Tokens != 176 {
		t.Errorf("got %+v", got)
	}
	for _, bad := range []string{"{", `{"timestamp":-1,"input_length":5}`, `{"timestamp":0,"input_length":0}`, `{"timestamp":0,"input_length":99999999999}`, `{"timestamp":1e99}`} {
		if _, err := ReadTrace(strings.NewReader(bad), 1, 1); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%s: got error %v, want one that names line 1", bad, err)
		}
	}
	for bad, want := range map[string]string{
		`{"timestamp":"0"}`:                        "line 1: field timestamp: got string, want a whole number of milliseconds",
		`{"timestamp":0,"input_length":1.5}`:       "line 1: field input_length: got number 1.5, want a whole number",
		`{"timestamp":0,"hash_ids":[1,"a"]}`:       "line 1: field hash_ids: got string, want a list of whole numbers",
		`{"timestamp":0,"hash_ids":7}`:             "line 1: field hash_ids: got number, want a list",
		"{\"timestamp\":0,\"input_length\":1}\n[]": "line 2: got array, want a JSON object",
		`{"timestamp":0} x`:                        "line 1: not one JSON object",
	} {
		_, err := ReadTrace(strings.NewReader(bad), 1, 1)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: got error %v, want one with %q", bad, err, want)
		}
	}
	if _, err := ReadTrace(strings.NewReader(text), 0, 1); err == nil {
		t.Error("speed 0: no error")
	}
}

// The columns of an Azure trace are found by their names, its times count from the first, and nothing is shared between
// its prompts.
func TestAzureTrace(t *testing.T) {
	const text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,0\r\n"
	got, err := ReadTrace(strings.NewReader(text), 2, 1)
	if err != nil || len(got) != 2 {
		t.Fatalf("got %d requests, %v", len(got), err)
	}
	first, second := got[0], got[1]
	if first.At != 0 || first.PromptTokens() != 374 || first.Output != 44 || second.PromptTokens() != 396 || second.Output != 1 ||
		(second.At-2157289500*time.Nanosecond).Abs() > time.Microsecond || first.Prompt[0].ID == second.Prompt[0].ID || second.Follows != -1 {
		t.Errorf("got %+v", got)
	}
	zoned := "GeneratedTokens,ContextTokens,TIMESTAMP\n5,7,2024-05-10 00:00:00.009930+00:00\n5,7,2024-05-10 00:00:01+00:00\n"
	if got, err := ReadTrace(strings.NewReader(zoned), 1, 1); err != nil || got[0].PromptTokens() != 7 || got[1].At != 990070*time.Microsecond {
		t.Errorf("with a zone and other columns: got %+v, %v", got, err)
	}
	const header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	for bad, want := range map[string]string{
		"":                                   "neither",
		"TIMESTAMP,ContextTokens\n":          "no column GeneratedTokens",
		header + "yesterday,1,1":             "line 2: TIMESTAMP \"yesterday\": want a time",
		header + "2023-11-16 18:15:46,one,1": "line 2: ContextTokens \"one\": want a whole number",
		header + "2023-11-16 18:15:46,-1,1":  "line 2",
		header + "2023-11-16 18:15:46,1,9e9": "line 2",
		header + "2023-11-16 18:15:46,1\n":   "line 2",
		header + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1": "line 3",
	} {
		if _, err := ReadTrace(strings.NewReader(bad), 1, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want one with %q", bad, err, want)
		}
	}
}

// Whatever a trace says, reading it gives an error or requests that a world can serve.
func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}`))
	f.Add([]byte("{\"timestamp\": 3000, \"input_length\": 1}\n{}"))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"))
	f.Add([]byte("GeneratedTokens,ContextTokens,TIMESTAMP\n5,7,2024-05-10 00:00:00.009930+00:00\n\"1\",2,0000-01-01 00:00:00Z"))
	f.Fuzz(func(t *testing.T, data []byte) {
		requests, err := ReadTrace(bytes.NewReader(data), 1, 1)
		for _, r := range requests {
			if n := r.PromptTokens(); err != nil || n < 1 || n > maxTraceTokens || r.Output < 1 || r.At < 0 {
				t.Fatalf("got %+v, %v", r, err)
			}
		}
	})
}
