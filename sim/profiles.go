package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/fleet"
)

// Profile is how fast one model runs on one kind of GPU. A step that computes `new` prompt tokens and decodes B
// sequences with K tokens of context between them takes
//
//	max(T0, PA + PB·new) + PC·Σ new·(ctx + new/2)/1e6 + DB·B + DC·K/1000   milliseconds
type Profile fleet.Calibration

// Backend is the engine that the row is of: vllm unless the grade says otherwise.
func (p *Profile) Backend() string {
	if _, engine, refit := strings.Cut(p.Grade, " "); refit {
		return engine
	}
	return "vllm"
}

// Budget is how many tokens a step computes at most by vLLM's defaults for a server: 8192 on GPUs of 70 GB and more but
// the A100, else 2048 (vllm/engine/arg_utils.py).
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

// StepMS is how long a step takes in milliseconds, for so many prompt tokens, pairs of prompt and context tokens,
// decoding sequences and tokens of their context.
func (p *Profile) StepMS(prompt int, pairs float64, decoding, context int) float64 {
	return max(p.T0, p.PA+p.PB*float64(prompt)) + p.PC*pairs/1e6 + p.DB*float64(decoding) + p.DC*float64(context)/1000
}

// Profiles lists the profiles known.
func Profiles() []Profile {
	var out []Profile
	for _, c := range fleet.Calibrations() {
		out = append(out, Profile(c))
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
