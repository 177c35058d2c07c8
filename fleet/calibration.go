package fleet

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/sluice-gateway/sluice/route"
)

// calibrationCSV holds step-time coefficients, one row for each model, precision, GPU and number of GPUs. They are
// facts fitted by us to what AIConfigurator-core 0.12.0 (Apache-2.0) publishes: operator tables and measured runs of
// whole engines. docs/simulator.md says how.
//
//go:embed profiles.csv
var calibrationCSV string

// Calibration is how fast one model runs on one kind of GPU: the coefficients of route.Step, and the size of the KV
// cache.
type Calibration struct {
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
	// Grade says what the row rests on. "refit ENGINE": coefficients fitted to measured runs of vllm or trtllm.
	// "tables": fitted to operator tables of vLLM, and the .54 ms a step and .055 ms a sequence that its scheduler took
	// where it was measured (Qwen3-32B on 2×H100). "derived": scaled from another GPU's by bandwidth and arithmetic,
	// good to ±30 % at best.
	Grade string
}

// Calibrations lists the rows of the table.
func Calibrations() []Calibration {
	var out []Calibration
	for i, line := range strings.Split(strings.TrimSpace(calibrationCSV), "\n") {
		if i == 0 {
			continue // the header
		}
		c, err := parseCalibration(strings.Split(line, ","))
		if err != nil {
			panic(fmt.Sprintf("profiles.csv, line %d: %v", i+1, err)) // a fault of the build: a test reads them all
		}
		out = append(out, c)
	}
	return out
}

func parseCalibration(f []string) (Calibration, error) {
	const columns = 13
	if len(f) != columns {
		return Calibration{}, fmt.Errorf("got %d fields, want %d", len(f), columns)
	}
	c := Calibration{Name: f[0], Model: f[1], GPU: f[2], Precision: f[4], Grade: f[12]}
	var err error
	if c.TP, err = strconv.Atoi(f[3]); err != nil {
		return c, err
	}
	for i, to := range []*float64{&c.T0, &c.PA, &c.PB, &c.PC, &c.DB, &c.DC} {
		if *to, err = strconv.ParseFloat(f[5+i], 64); err != nil {
			return c, err
		}
	}
	c.KVTokens, err = strconv.Atoi(f[11])
	return c, err
}

// step is the row as what a step costs.
func (c *Calibration) step() route.Step {
	return route.Step{T0: float32(c.T0), PA: float32(c.PA), PB: float32(c.PB), PC: float32(c.PC), DB: float32(c.DB), DC: float32(c.DC)}
}

// neutral is the shape of an endpoint of which model or GPU is not known, for a speed in the midst of the table's rows.
// Next to a prompt token its coefficients are within a quarter of the rows' average, but that context costs a decoding
// sequence half more, and a sequence itself less than half. What is learned is how many times slower or faster it is.
func neutral() route.Step { return route.Step{T0: 20, PA: 12, PB: .08, PC: 2.4, DB: .05, DC: .08} }

// calibrate finds the row of the table for a model under any of these names on a GPU with this label. Where several
// differ in how many GPUs share the model and no label says it (tp 0), the size of the KV cache does (NaN when not
// known); failing that it is the least. It returns nil where the table has none.
func calibrate(table []Calibration, models []string, gpu string, tp int, kvTokens float64) *Calibration {
	var best *Calibration
	worst := math.Inf(1)
	for i := range table {
		c := &table[i]
		if !sameGPU(c.GPU, gpu) || tp != 0 && tp != c.TP || !anyModel(c, models) {
			continue
		}
		far := float64(c.TP) * 1e-3
		if kvTokens > 0 {
			far += math.Abs(math.Log(kvTokens / float64(c.KVTokens)))
		}
		if far < worst {
			best, worst = c, far
		}
	}
	return best
}

// CalibrationOf finds the row of the calibration table that an endpoint's speeds begin with, as its pool does: by its labels, the pool's model, what
// it lists, and the size of its KV cache in tokens, NaN when not known. It is nil where there is none: speeds begin with a neutral shape then, and are
// learned.
func CalibrationOf(e *Endpoint, model string, listed []Model, kvTokens float64) *Calibration {
	gpu := e.GPU()
	if gpu == "" {
		return nil
	}
	return calibrate(Calibrations(), append([]string{model}, roots(listed)...), gpu, e.tp(), kvTokens)
}

// sameGPU reports whether a label, such as NVIDIA-H100-80GB-HBM3, names the table's GPU, such as H100-80: a word of the
// label is the part before the hyphen.
func sameGPU(row, label string) bool {
	short, _, _ := strings.Cut(row, "-")
	for word := range strings.FieldsFuncSeq(label, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if strings.EqualFold(word, short) {
			return true
		}
	}
	return false
}

// anyModel reports whether one of the names is that of the row's model in the row's precision: it holds the model's
// name, whatever stands before or behind it, and says FP8 exactly where the row does. Weights of four bits are another
// model.
func anyModel(c *Calibration, names []string) bool {
	want := squeeze(c.Model)
	for _, n := range names {
		n = squeeze(n)
		i := strings.Index(n, want)
		if i < 0 || strings.Contains(n, "fp8") != (c.Precision == "fp8") || strings.Contains(n, "awq") || strings.Contains(n, "gptq") || strings.Contains(n, "int4") {
			continue
		}
		if before := n[:i]; before == "" || !unicode.IsDigit(rune(before[len(before)-1])) {
			return true
		}
	}
	return false
}

// squeeze keeps a name's letters and digits, in lower case.
func squeeze(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, name)
}

// roots are the names that say what base model an endpoint serves: what it lists, and what vLLM and SGLang say is
// behind that.
func roots(models []Model) []string {
	var names []string
	for _, m := range models {
		if m.Parent != "" {
			continue
		}
		var raw struct {
			Root string `json:"root"`
		}
		if json.Unmarshal(m.Raw, &raw) == nil && raw.Root != "" {
			names = append(names, raw.Root)
		}
		names = append(names, m.ID)
	}
	return names
}
