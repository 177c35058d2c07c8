package scrape

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gateway/sluice/fleet"
)

func describe(engine string, r fleet.Reading, missing []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "engine %s\n", engine)
	for _, c := range []struct {
		name  string
		value float64
	}{{"waiting", r.Waiting}, {"running", r.Running}, {"KV use", r.KVUse}, {"KV tokens", r.KVTokens}, {"prefill seconds", r.PrefillSeconds},
		{"prefill tokens", r.PrefillTokens}, {"decode seconds", r.DecodeSeconds}, {"decode tokens", r.DecodeTokens},
		{"cached tokens", r.CachedTokens}, {"first tokens", r.Firsts}, {"first token seconds", r.FirstSeconds}, {"finished", r.Finished},
		{"finished prompt tokens", r.FinishedPrompt}, {"finished output tokens", r.FinishedOutput}, {"progress", r.Progress}, {"max adapters", r.MaxAdapters}} {
		if !math.IsNaN(c.value) {
			fmt.Fprintf(&b, "%s %.10g\n", c.name, c.value)
		}
	}
	if len(r.Resident)+len(r.WaitingAdapters) > 0 {
		fmt.Fprintf(&b, "resident %q, waiting %q\n", r.Resident, r.WaitingAdapters)
	}
	for _, m := range missing {
		fmt.Fprintf(&b, "missing %s\n", m)
	}
	return b.String()
}

func readPage(t testing.TB, name string) []byte {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("testdata", "pages", name))
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// Every line of the scripts' results is reviewed; -rewrite renews them.
func TestReadings(t *testing.T) {
	for _, script := range []string{"testdata/pages.txt", "testdata/lines.txt"} {
		datadriven.RunTest(t, script, func(t *testing.T, d *datadriven.TestData) string {
			var page []byte
			if d.Cmd == "page" {
				var file string
				d.ScanArgs(t, "file", &file)
				page = readPage(t, file)
			} else {
				page = []byte(d.Input + "\n")
			}
			var engine, model string
			capacity := math.NaN()
			var tokens int
			d.MaybeScanArgs(t, "engine", &engine)
			d.MaybeScanArgs(t, "model", &model)
			if d.MaybeScanArgs(t, "capacity", &tokens) {
				capacity = float64(tokens)
			}
			dia := detect(page)
			if engine != "" {
				dia = dialectOf(engine)
			}
			if dia == nil {
				return "no engine\n"
			}
			s := newScanner(dia)
			s.model = model
			s.scan(page)
			r, missing := s.reading(capacity)
			return describe(dia.engine, r, missing.words)
		})
	}
}

// Every engine of the table has a page of its own among the recorded ones.
func TestEveryEngineHasAPage(t *testing.T) {
	files, err := os.ReadDir("testdata/pages")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range files {
		if d := detect(readPage(t, f.Name())); d != nil {
			seen[d.engine] = true
		}
	}
	for _, e := range Engines() {
		if !seen[e] {
			t.Errorf("got no page of %s under testdata/pages, want one", e)
		}
	}
}

// Z09: a last line without its end may be cut in its value; line ends may be CRLF.
func TestLineEnds(t *testing.T) {
	s := newScanner(dialectOf("vllm"))
	s.scan([]byte("vllm:num_requests_running{a=\"b\"} 12\r\nvllm:num_requests_waiting 3\r\nvllm:num_requests_waiting{x=\"y\"} 123"))
	r, _ := s.reading(math.NaN())
	if r.Running != 12 || r.Waiting != 3 {
		t.Errorf("got running %v waiting %v, want 12 and 3", r.Running, r.Waiting)
	}
}

// Lists of adapters are made anew only when they changed, and forgotten when they are gone.
func TestAdaptersAreReused(t *testing.T) {
	s := newScanner(dialectOf("vllm"))
	scan := func(page string) []string {
		s.scan([]byte(page))
		r, _ := s.reading(math.NaN())
		return r.Resident
	}
	a := scan("vllm:lora_requests_info{running_lora_adapters=\"a,b\"} 1\n")
	b := scan("vllm:lora_requests_info{running_lora_adapters=\"a,b\"} 2\n")
	if &a[0] != &b[0] {
		t.Error("got a new list for the same label, want the old one")
	}
	if c := scan("vllm:num_requests_waiting 1\n"); len(c) != 0 {
		t.Errorf("got %q after the metric went away, want none", c)
	}
}

// bigPage is a page like vLLM's of at least n bytes: the wanted lines once, histograms many times.
func bigPage(tb testing.TB, n int) []byte {
	page := readPage(tb, "vllm-0.32-load.txt")
	var more []byte
	for line := range bytes.Lines(page) {
		if bytes.HasPrefix(line, []byte("vllm:")) && bytes.Contains(line, []byte("_bucket")) {
			more = append(more, line...)
		}
	}
	for len(page) < n {
		page = append(page, more...)
	}
	return page[:bytes.LastIndexByte(page[:n], '\n')+1]
}

// M14: scanning a page again makes no garbage.
func TestScanAllocatesNothing(t *testing.T) {
	page := bigPage(t, 122<<10)
	s := newScanner(dialectOf("vllm"))
	scan := func() {
		s.scan(page)
		s.reading(math.NaN())
	}
	scan()
	if n := testing.AllocsPerRun(100, scan); n != 0 {
		t.Errorf("got %v allocations a page, want 0", n)
	}
}

func BenchmarkScan(b *testing.B) {
	for _, kb := range []int{50, 122} {
		b.Run(fmt.Sprintf("KB=%d", kb), func(b *testing.B) {
			page := bigPage(b, kb<<10)
			s := newScanner(dialectOf("vllm"))
			b.SetBytes(int64(len(page)))
			b.ReportAllocs()
			for b.Loop() {
				s.scan(page)
				s.reading(math.NaN())
			}
		})
	}
}
