package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// runBench runs the command as a shell would, and returns what it says on both streams.
func runBench(t *testing.T, args ...string) (out, notes string, err error) {
	t.Helper()
	cmd := root()
	var o, n bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&n)
	cmd.SetArgs(append([]string{"bench"}, args...))
	err = cmd.ExecuteContext(t.Context())
	return o.String(), n.String(), err
}

// small is a bench of a second.
func small(args ...string) []string {
	return append([]string{"--workload", "mixed", "--rate", "5", "--fleet", "l8-h100=1,l8-a10g=1", "--for", "30s", "--seeds", "2"}, args...)
}

func TestBench(t *testing.T) {
	page := filepath.Join(t.TempDir(), "bench.html")
	out, _, err := runBench(t, small("--policies", "round-robin,latency,greedy", "--plot", page)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"means of 2 seeds", "1×l8-h100 + 1×l8-a10g, mixed, 5/s", "all-knowing greedy ", "→ latency "} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwithout %q", out, want)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	checkPage(t, string(html))

	out, _, err = runBench(t, small("--json", "--no-labels", "--policies", "round-robin,latency", "--replicas", "2", "--limit-ttft", "1s")...)
	var table struct {
		Seeds, Replicas int
		Labels          bool
		Goals           []struct{ Row, Goal, Outcome string }
		Rows            []struct {
			Policies []struct {
				Policy  string
				Figures map[string]struct{ Mean, Low, High float64 }
			}
			Pairs []struct{ Against string }
		}
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &table)); err != nil {
		t.Fatal(err)
	}
	if table.Seeds != 2 || table.Replicas != 2 || table.Labels || len(table.Rows) != 1 || len(table.Rows[0].Policies) != 2 || table.Rows[0].Pairs[0].Against != "round robin" || len(table.Goals) != 1 || table.Goals[0].Row != "mixed" {
		t.Errorf("got %+v", table)
	}
	if f := table.Rows[0].Policies[1].Figures["P95"]; !(f.Low < f.Mean && f.Mean < f.High) {
		t.Errorf("P95: got %+v, want an interval around the mean", f)
	}
}

// One seed says nothing of chance: there is no interval, and no verdict on what may be luck.
func TestBenchOfOneSeedJudgesNothing(t *testing.T) {
	out, _, err := runBench(t, "--workload", "mixed", "--rate", "5", "--fleet", "l8-h100=2", "--for", "30s", "--seeds", "1", "--measures", "all",
		"--policies", "power-of-two,latency,greedy", "--check")
	if err != nil || !strings.Contains(out, "of one seed, which gives no interval and no verdict") || !strings.Contains(out, "undecided  mixed") {
		t.Errorf("got %v and\n%s\nwithout a word on the one seed", err, out)
	}
	for _, not := range []string{"→", "equals", "beats", "±", "NaN", "seeds"} {
		if strings.Contains(out, not) {
			t.Errorf("got\n%s\nwith %q of one seed", out, not)
		}
	}
}

// checkPage wants well-formed markup in which nothing points outside.
func checkPage(t *testing.T, page string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Entity = xml.HTMLEntity
	pictures := 0
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("the page is not well formed: %v", err)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch start.Name.Local {
		case "svg":
			pictures++
		case "script", "link", "iframe", "img", "image", "object", "embed", "base":
			t.Errorf("the page has an element %s", start.Name.Local)
		}
		for _, a := range start.Attr {
			if name := a.Name.Local; name == "src" || name == "href" && !strings.HasPrefix(a.Value, "#") || strings.Contains(a.Value, "url(") {
				t.Errorf("%s %s=%q points outside", start.Name.Local, name, a.Value)
			}
		}
	}
	if pictures != 3 { // the standing, and two of the row
		t.Errorf("got %d pictures, want 3", pictures)
	}
	if m := regexp.MustCompile(`@import|url\(|NaN|Inf\b`).FindString(page); m != "" {
		t.Errorf("the page contains %q", m)
	}
}

// A goal that is missed fails the command only where it was asked to check.
func TestBenchCheck(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "azure.csv")
	text := "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:00,100,5\n2023-11-16 18:15:30.5,100,5\n2023-11-16 18:16:00,100,5\n"
	if err := os.WriteFile(trace, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--trace", trace, "--seeds", "1", "--fleet", "l8-h100=2", "--policies", "round-robin,latency", "--check"},
		{"--trace", trace, "--seeds", "1", "--speed", "2", "--policies", "round-robin,greedy", "--check"},
	} {
		out, _, err := runBench(t, args...)
		if err != nil || !strings.Contains(out, "azure.csv at ") {
			t.Errorf("%q: got %v and\n%s", args, err, out)
		}
	}
	// A few gateways that know nothing of each other and hear of slow endpoints seldom lose to taking turns.
	bad := []string{"--workload", "uniform", "--rate", "3.3", "--fleet", "l8-a10g=2", "--for", "60s", "--seeds", "4", "--replicas", "20", "--scrape", "20s",
		"--policies", "power-of-two,round-robin,latency"}
	out, notes, err := runBench(t, append(bad, "--check")...)
	missed := strings.Contains(out, "\nmissed")
	if missed != errors.Is(err, errSaid) || missed != strings.Contains(notes, "goals missed") || !strings.Contains(out, "no other policy better by over 5 %") {
		t.Errorf("got %v, %q and\n%s", err, notes, out)
	}
	if _, _, err := runBench(t, bad...); err != nil {
		t.Errorf("unasked: got %v", err)
	}
}

// What stands between a page's markers is made again, and nothing else.
func TestBenchMarkdown(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("# Before\n"+markdownBegin+"\nold\n"+markdownEnd+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := runBench(t, small("--policies", "round-robin,latency", "--markdown", page, "--measures", "ttft,fleet")...); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Before\n" + markdownBegin + "\n", "| mixed | no other policy better by over 5 % | ", "Of 1 goals ", "| row | latency | with KV events | best other |", "round robin ", "imbalance", "\n" + markdownEnd + "\nafter\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("got\n%s\nwithout %q", text, want)
		}
	}
	if strings.Contains(string(text), "old") {
		t.Errorf("got\n%s", text)
	}
}

func TestBenchRefuses(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("no markers\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"must be at least 1":          {"--seeds", "0"},
		"--scrape 0s must":            {"--scrape", "0s"},
		"--fleet needs":               {"--fleet", "l8-h100=1"},
		"--speed is for --trace":      {"--speed", "2"},
		"cannot find row \"A9\"":      {"--rows", "A9"},
		"cannot find policy \"best\"": {"--policies", "best"},
		"cannot find workload":        {"--workload", "odd"},
		"cannot find profile":         {"--workload", "mixed", "--fleet", "odd=1"},
		"cannot read trace":           {"--trace", filepath.Join(t.TempDir(), "none")},
		"cannot read points":          {"--calibration", filepath.Join(t.TempDir(), "none")},
		"[rows calibration]":          {"--rows", "A1", "--calibration", "x"},
		"cannot find suite":           {"--suite", "odd"},
		"cannot find measures":        {"--measures", "odd"},
		"it needs a line":             {"--markdown", page},
		"[rows suite trace workload]": {"--rows", "A1", "--workload", "mixed"},
		"the first 20s don't count":   {"--for", "20s", "--rows", "A1"},
	} {
		if _, _, err := runBench(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", args, err, want)
		}
	}
}

// A file of measured points makes a table of errors, or the same as JSON.
func TestCalibration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "points.csv")
	const points = `id,silicon_data_source,backend,model_path,system,precision,mode,isl,osl,batch_size,tp_size,pp_size,attention_dp_size,silicon_ttft_ms,silicon_tpot_ms
a,x,vllm,meta-llama/Llama-3.1-70B,h100_sxm,fp8,agg,1024,1024,4,4,1,1,80.5,11.78
`
	if err := os.WriteFile(file, []byte(points), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err := runBench(t, "--calibration", file)
	if err != nil || !regexp.MustCompile(`l70fp8-h100x4 +refit vllm +1 +\d\.\d%`).MatchString(out) {
		t.Errorf("got %v, %s", err, out)
	}
	out, _, err = runBench(t, "--calibration", file, "--json")
	if err != nil || !json.Valid([]byte(out)) {
		t.Errorf("got %v, %s", err, out)
	}
	if err := os.WriteFile(file, []byte("id\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err = runBench(t, "--calibration", file); err == nil || !strings.Contains(err.Error(), "no column") {
		t.Errorf("got %v, want an error that names a column", err)
	}
}

// Whoever waits longer than two seconds is told how far it is; a terminal's line is overwritten and then cleared.
func TestBenchProgress(t *testing.T) {
	for terminal, want := range map[bool]string{false: "1 of 9 runs, about 16s more\n8 of 9 runs, about 2s more\n", true: "\r1 of 9 runs, about 16s more\x1b[K\r8 of 9 runs, about 2s more\x1b[K\r\x1b[K"} {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			p := &benchProgress{out: &b, terminal: terminal}
			stop := p.start(10 * time.Second)
			p.set(1, 9, 16*time.Second)
			time.Sleep(3 * time.Second)
			p.set(8, 9, 1900*time.Millisecond)
			time.Sleep(10 * time.Second)
			stop()
			if b.String() != want {
				t.Errorf("terminal %v: got %q, want %q", terminal, b.String(), want)
			}
			b.Reset()
			stop = p.start(time.Second)
			time.Sleep(time.Second)
			if stop(); b.Len() > 0 {
				t.Errorf("after a second: got %q, want nothing", b.String())
			}
		})
	}
}
