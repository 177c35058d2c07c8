package scrape

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sluice-gateway/sluice/fleet"
)

// sane reports what of a reading can't be.
func sane(t *testing.T, r fleet.Reading) {
	t.Helper()
	for i, v := range []float64{r.Waiting, r.Running, r.KVTokens, r.MaxAdapters, r.PrefillSeconds, r.PrefillTokens, r.DecodeSeconds, r.DecodeTokens, r.CachedTokens,
		r.Progress} {
		if !math.IsNaN(v) && !(v >= 0 && !math.IsInf(v, 0)) {
			t.Errorf("got %v for value %d, want it not known, or finite and not negative", v, i)
		}
	}
	if !math.IsNaN(r.KVUse) && !(r.KVUse >= 0 && r.KVUse <= 1) {
		t.Errorf("got KV use %v, want 0..1", r.KVUse)
	}
}

func FuzzScan(f *testing.F) {
	files, err := filepath.Glob("testdata/pages/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		page, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if len(page) > 16<<10 {
			page = page[len(page)-16<<10:]
		}
		f.Add(page, "m")
	}
	lines, err := os.ReadFile("testdata/lines.txt")
	if err != nil {
		f.Fatal(err)
	}
	for script := range strings.SplitSeq(string(lines), "\n\n") {
		f.Add([]byte(script), "b")
	}
	f.Add([]byte("vllm:x{"), "")
	f.Add([]byte("vllm:\nvllm:n\n"), "")
	f.Fuzz(func(t *testing.T, page []byte, model string) {
		for i := range dialects {
			s := newScanner(&dialects[i])
			s.model = model
			for range 2 { // room is reused, so the second time counts too
				s.scan(page)
				r, _ := s.reading(math.NaN())
				sane(t, r)
				s.scan(page[:len(page)/2])
				r, _ = s.reading(1000)
				sane(t, r)
			}
		}
	})
}

func FuzzParseModels(f *testing.F) {
	body, err := os.ReadFile("testdata/models-vllm-0.32-lora.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{"data":[{"id":"a","parent":1},{"id":2},null,"x",{"id":"a"}],"models":[{}]}`))
	f.Add([]byte(`{"data":null}`))
	f.Add([]byte(`[1]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		models, _, _ := parseModels(body)
		seen := map[string]bool{}
		for _, m := range models {
			if m.ID == "" || seen[m.ID] || m.Parent == m.ID || !bytes.Contains(body, m.Raw) {
				t.Errorf("got %+v of %q", m, body)
			}
			seen[m.ID] = true
		}
	})
}

func FuzzParseProps(f *testing.F) {
	body, err := os.ReadFile("testdata/props-llamacpp.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{"default_generation_settings":{"n_ctx":1e300},"total_slots":1e300}`))
	f.Add([]byte(`{"default_generation_settings":null,"total_slots":-4}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if tokens := parseProps(body); !math.IsNaN(tokens) && !(tokens >= 1 && tokens <= absurd) {
			t.Errorf("got %v tokens of %q, want a size or NaN", tokens, body)
		}
	})
}

// What /props of a real llama.cpp with four slots says, and what is no size.
func TestParseProps(t *testing.T) {
	body, err := os.ReadFile("testdata/props-llamacpp.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		body string
		want float64
	}{
		{string(body), 4096},
		{`{"default_generation_settings":{"n_ctx":2048}}`, 2048},
		{`{"default_generation_settings":{"n_ctx":0},"total_slots":4}`, math.NaN()},
		{`{"default_generation_settings":{"n_ctx":-1},"total_slots":4}`, math.NaN()},
		{`{"default_generation_settings":{"n_ctx":"2048"},"total_slots":4}`, math.NaN()},
		{`{"total_slots":4}`, math.NaN()},
		{`<html>`, math.NaN()},
	} {
		if got := parseProps([]byte(c.body)); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%.60s: got %v, want %v", c.body, got, c.want)
		}
	}
}

// What /v1/models of a real vLLM with an adapter says.
func TestParseModels(t *testing.T) {
	body, err := os.ReadFile("testdata/models-vllm-0.32-lora.json")
	if err != nil {
		t.Fatal(err)
	}
	models, engine, ok := parseModels(body)
	if !ok || engine != "vllm" || len(models) != 2 || models[0].ID != "tiny" || models[0].Parent != "" || models[1].ID != "lora-a" || models[1].Parent != "tiny" {
		t.Errorf("got %+v of %q, want tiny and its adapter lora-a of vllm", models, engine)
	}
	odd := `{"data":[{"id":1},{"id":null},{},[],7,null,"x",{"id":"ok","parent":{"x":1}},{"id":""},{"id":"a\nb"},{"id":"` + strings.Repeat("m", 1025) + `"}]}`
	if models, _, ok := parseModels([]byte(odd)); !ok || len(models) != 1 || models[0].ID != "ok" || models[0].Parent != "" {
		t.Errorf("got %+v, want ok alone", models)
	}
	for _, page := range []string{"<html>", `{"data":7}`, `{"data":[{"id":"a"}`} {
		if _, _, ok := parseModels([]byte(page)); ok {
			t.Errorf("got a list from %s, want none", page)
		}
	}
}

// The scanner and the field's usual parser agree on every operand of every recorded page.
func TestAgreesWithTheUsualParser(t *testing.T) {
	files, err := os.ReadDir("testdata/pages")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		page := readPage(t, file.Name())
		d := detect(page)
		if d == nil {
			continue
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
		if err != nil {
			t.Fatalf("%s: %v", file.Name(), err)
		}
		s := newScanner(d)
		s.scan(page)
		for i := range s.cells {
			c := &s.cells[i]
			if c.rule == newest || c.from != "" || len(d.copies) > 0 {
				continue
			}
			got, want := c.all.value(sum), usual(families, d, c.operand)
			if math.Abs(got-want) > 1e-9*math.Abs(want) || math.IsNaN(got) != math.IsNaN(want) {
				t.Errorf("%s: %s: got %v, want %v", file.Name(), d.title(c.operand), got, want)
			}
		}
	}
}

// usual sums the series of an operand as the usual parser reads them.
func usual(families map[string]*dto.MetricFamily, d *dialect, o operand) float64 {
	total := math.NaN()
	add := func(v float64) {
		if math.IsNaN(total) {
			total = 0
		}
		total += v
	}
	names := []string{o.name}
	if o.counter {
		names = append(names, o.name+"_total")
	}
	if histogram, ok := strings.CutSuffix(o.name, "_sum"); ok {
		names = append(names, histogram)
	}
	histogram, counts := strings.CutSuffix(o.name, "_count")
	if counts {
		names = append(names, histogram)
	}
	for _, name := range names {
		for _, m := range families[d.prefix+d.separator+name].GetMetric() {
			if !hasLabel(m, o.only) {
				continue
			}
			switch {
			case m.Histogram != nil && counts:
				add(float64(m.Histogram.GetSampleCount()))
			case m.Histogram != nil:
				add(m.Histogram.GetSampleSum())
			case m.Gauge != nil:
				add(m.Gauge.GetValue())
			case m.Counter != nil:
				add(m.Counter.GetValue())
			case m.Untyped != nil:
				add(m.Untyped.GetValue())
			}
		}
	}
	return total
}

func hasLabel(m *dto.Metric, want [2]string) bool {
	for _, l := range m.GetLabel() {
		if l.GetName() == want[0] && l.GetValue() == want[1] {
			return true
		}
	}
	return want[0] == ""
}

// A difference of two counters read between two writes must not look like a restart; a restart must.
func TestDifferenceDoesNotFall(t *testing.T) {
	s := newScanner(dialectOf("sglang"))
	tokens := func(prompt, cached string) float64 {
		s.scan([]byte("sglang:prompt_tokens_total " + prompt + "\nsglang:cached_tokens_total " + cached + "\n"))
		r, _ := s.reading(math.NaN())
		return r.PrefillTokens
	}
	for _, c := range []struct {
		prompt, cached string
		want           float64
	}{
		{"100", "20", 80},
		{"200", "20", 180}, // the prompt is counted, its cached part not yet
		{"200", "90", 180},
		{"300", "95", 205},
		{"50", "10", 40}, // restarted
	} {
		if got := tokens(c.prompt, c.cached); got != c.want {
			t.Errorf("got %v for %s less %s, want %v", got, c.prompt, c.cached, c.want)
		}
	}
}

// What an engine counts for all its ranks together says nothing of one.
func TestUnrankedSeries(t *testing.T) {
	page := []byte("sglang:num_running_reqs{dp_rank=\"0\"} 3\nsglang:num_running_reqs{dp_rank=\"1\"} 4\nsglang:time_to_first_token_seconds_count 90\n")
	for rank, want := range map[string][2]float64{"": {7, 90}, "1": {4, math.NaN()}} {
		s := newScanner(dialectOf("sglang"))
		s.rank = rank
		s.scan(page)
		if r, _ := s.reading(math.NaN()); r.Running != want[0] || r.Firsts != want[1] && !(math.IsNaN(r.Firsts) && math.IsNaN(want[1])) {
			t.Errorf("rank %q: got %v running and %v first tokens, want %v", rank, r.Running, r.Firsts, want)
		}
	}
}
