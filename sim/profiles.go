package sim

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// profilesCSV holds step-time coefficients, one row for each model, precision, GPU and number of GPUs. They are facts fitted by us to what
// AIConfigurator-core 0.12.0 (Apache-2.0) publishes: operator tables and measured runs of whole engines. docs/simulator.md says how.
//
//go:embed profiles.csv
var profilesCSV string

// Profile is how fast one model runs on one kind of GPU. A step that computes `new` prompt tokens and decodes B sequences with K tokens of
// context between them takes
//
//	max(T0, PA + PB·new) + PC·Σ new·(ctx + new/2)/1e6 + DB·B + DC·K/1000   milliseconds
type Profile struct {
	// Name is short and unique: "l8-h100".
	Name string
	// Model, GPU and Precision are words for people; TP is how many GPUs share the model.
	Model, GPU, Precision string
	TP                    int
	// T0 and PA are milliseconds a step, PB a prompt token, PC a million pairs of prompt token and context token, DB a
	// decoding sequence, DC a thousand tokens of its context.
	T0, PA, PB, PC, DB, DC float64
	// KVTokens is how many tokens the KV cache holds.
	KVTokens int
	// Grade says what the row rests on. "refit ENGINE": coefficients fitted to measured runs of vllm or trtllm. "tables": fitted to operator tables of
	// vLLM, and the .54 ms a step and .055 ms a sequence that its scheduler took where it was measured (Qwen3-32B on 2×H100). "derived": scaled from
	// another GPU's by bandwidth and arithmetic, good to ±30 % at best.
	Grade string
}

// Backend is the engine that the row is of: vllm unless the grade says otherwise.
func (p *Profile) Backend() string {
	if _, engine, refit := strings.Cut(p.Grade, " "); refit {
		return engine
	}
	return "vllm"
}

// Budget is how many tokens a step computes at most by vLLM's defaults for a server: 8192 on GPUs of 70 GB and more but the A100, else 2048
// (vllm/engine/arg_utils.py).
func (p *Profile) Budget() int {
	if p.large() {
		return 8192
	}
	return 2048
}

// maxSeqs is how many sequences run at once by the same defaults.
func (p *Profile) maxSeqs() int {
	if p.large() {
		return 1024
	}
	return 256
}

func (p *Profile) large() bool { return strings.HasPrefix(p.GPU, "H") || strings.HasPrefix(p.GPU, "B") }

// StepMS is how long a step takes in milliseconds, for so many prompt tokens, pairs of prompt and context tokens, decoding
// sequences and tokens of their context.
func (p *Profile) StepMS(prompt int, pairs float64, decoding, context int) float64 {
	return max(p.T0, p.PA+p.PB*float64(prompt)) + p.PC*pairs/1e6 + p.DB*float64(decoding) + p.DC*float64(context)/1000
}

// Profiles lists the profiles known.
func Profiles() []Profile {
	var out []Profile
	for i, line := range strings.Split(strings.TrimSpace(profilesCSV), "\n") {
		if i == 0 {
			continue // the header
		}
		p, err := parseProfile(strings.Split(line, ","))
		if err != nil {
			panic(fmt.Sprintf("profiles.csv, line %d: %v", i+1, err)) // a fault of the build: a test reads them all
		}
		out = append(out, p)
	}
	return out
}

// ProfileNamed finds a profile by its name.
func ProfileNamed(name string) (Profile, error) {
	all := Profiles()
	i := slices.IndexFunc(all, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		var names []string
		for _, p := range all {
			names = append(names, p.Name)
		}
		return Profile{}, fmt.Errorf("cannot find profile %q: known are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

func parseProfile(f []string) (Profile, error) {
	const columns = 13
	if len(f) != columns {
		return Profile{}, fmt.Errorf("got %d fields, want %d", len(f), columns)
	}
	p := Profile{Name: f[0], Model: f[1], GPU: f[2], Precision: f[4], Grade: f[12]}
	var err error
	if p.TP, err = strconv.Atoi(f[3]); err != nil {
		return p, err
	}
	for i, to := range []*float64{&p.T0, &p.PA, &p.PB, &p.PC, &p.DB, &p.DC} {
		if *to, err = strconv.ParseFloat(f[5+i], 64); err != nil {
			return p, err
		}
	}
	p.KVTokens, err = strconv.Atoi(f[11])
	return p, err
}
