package fleet

import (
	"math"
	"testing"
)

// Every row of the table is read, names one of its kind, and is found again by its own words.
func TestCalibrationTable(t *testing.T) {
	table := Calibrations()
	if len(table) < 10 {
		t.Fatalf("got %d rows", len(table))
	}
	for i := range table {
		c := &table[i]
		if !(c.T0 > 0 && c.PA > 0 && c.PB > 0 && c.PC > 0 && c.DB > 0 && c.DC > 0 && c.KVTokens > 0 && c.TP > 0) {
			t.Errorf("%s: %+v", c.Name, c)
		}
		model := "someone/" + c.Model + "-Instruct"
		if c.Precision == "fp8" {
			model += "-FP8"
		}
		if got := calibrate(table, []string{model}, "NVIDIA-"+c.GPU, c.TP, math.NaN()); got == nil || got.Model != c.Model || got.GPU != c.GPU || got.TP != c.TP || got.Precision != c.Precision {
			t.Errorf("%s on %s ×%d: got %+v", model, c.GPU, c.TP, got)
		}
	}
}

// What an endpoint is, is told by the labels of nodes, the names that engines list, and how many tokens the cache holds.
func TestCalibrationIsFound(t *testing.T) {
	table := Calibrations()
	for _, c := range []struct {
		model, gpu string
		tp         int
		kv         float64
		want       string
	}{
		{"meta-llama/Llama-3.1-8B-Instruct", "NVIDIA-H100-80GB-HBM3", 0, math.NaN(), "l8-h100"},
		{"/models/llama-3.1-8b", "a10g", 1, math.NaN(), "l8-a10g"},
		{"Qwen/Qwen3-32B", "NVIDIA-H100-80GB-HBM3", 2, math.NaN(), "q32-h100x2"},
		{"Qwen/Qwen3-32B", "H100", 0, 305_000, "q32-h100x2"},
		{"Qwen/Qwen3-32B", "H100", 0, 33_000, "q32-h100x1"},
		{"Qwen/Qwen3-32B-FP8", "H100", 1, math.NaN(), "q32fp8-h100x1"},
		{"Qwen/Qwen3-32B-AWQ", "H100", 1, math.NaN(), ""},
		{"Qwen/Qwen3-32B", "A10", 1, math.NaN(), ""},
		{"Qwen/Qwen3-32B", "H200", 1, math.NaN(), ""},
		{"another", "H100", 1, math.NaN(), ""},
	} {
		got := ""
		if found := calibrate(table, []string{c.model}, c.gpu, c.tp, c.kv); found != nil {
			got = found.Name
		}
		if got != c.want {
			t.Errorf("%s on %s ×%d with %v tokens: got %q, want %q", c.model, c.gpu, c.tp, c.kv, got, c.want)
		}
	}
}

// A labelled endpoint starts from the table's row for what its engine lists, before anything is measured; and a prompt ten times
// as long takes more than ten times as long there.
func TestLabelledEndpointsStartFromTheTable(t *testing.T) {
	p := NewPool("m")
	eps := named(2)
	eps[0].Labels = map[string]string{LabelNvidiaGPU: "NVIDIA-H100-80GB-HBM3", LabelTP: "2"}
	eps[1].Labels = map[string]string{LabelGPU: "A10G"}
	p.Apply(PoolConfig{Name: "m", Endpoints: eps})
	p.ObserveModels(eps[0].Name, "vllm", []Model{{ID: "chat", Raw: []byte(`{"id":"chat","root":"Qwen/Qwen3-32B"}`)}})
	s := p.Status(0)
	if got := s[0].Rate; got.Source != "q32-h100x2" || got.PB != .05017 || got.Name != "vllm NVIDIA-H100-80GB-HBM3 ×2" {
		t.Errorf("got %+v, want the row of Qwen3-32B on 2×H100", got)
	}
	if got := s[1].Rate; got.Source != "" || got.Name != "A10G" {
		t.Errorf("of an unknown model: got %+v, want the neutral shape", got)
	}
	long, short := s[0].Rate.Compute(50_000, 0), s[0].Rate.Compute(5000, 0)
	if !(long > 15*short) {
		t.Errorf("50k tokens take %v ms and 5k %v, want attention to count", long, short)
	}
}

// A half-cached long prompt costs more than half: what is computed attends to what is cached.
func TestCachedContextIsNotFree(t *testing.T) {
	s := neutral()
	if whole, half := s.Compute(16_000, 0), s.Compute(8000, 8000); !(half > .53*whole) {
		t.Errorf("half cached takes %v ms of %v", half, whole)
	}
}
