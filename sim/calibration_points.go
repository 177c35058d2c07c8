package sim

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// point is one measured run of a benchmark against one engine: as many requests under way at a time as concurrency
// says.
type point struct {
	id, backend, model, gpu, precision string
	tp, input, output, concurrency     int
	ttft, tpot                         float64 // milliseconds, means
	heldOut                            bool
	fixed                              bool // every request is just as long as it says; else 80 to 100 % of that, at random
}

// pointsOf are the points that were measured of what the profile is of, in the order of their ids, each measurement
// once; every second one is held out when a profile is fitted. What was measured repeatedly is on one side.
func pointsOf(all []point, profile *Profile) []point {
	mine := slices.DeleteFunc(slices.Clone(all), func(p point) bool { return !p.of(profile) || p.concurrency > maxConcurrency })
	slices.SortFunc(mine, func(a, b point) int { return cmp.Compare(a.id, b.id) })
	kept, sides := mine[:0], make(map[[3]int]bool)
	for _, p := range mine {
		shape := [3]int{p.input, p.output, p.concurrency}
		side, known := sides[shape]
		if !known {
			side = len(sides)%2 == 1
			sides[shape] = side
		}
		p.heldOut = side
		if !slices.ContainsFunc(kept, func(q point) bool { return q.input == p.input && q.ttft == p.ttft && q.tpot == p.tpot }) {
			kept = append(kept, p)
		}
	}
	return kept
}

// What a line of a file may ask for: maxPoint bounds lengths, maxConcurrency the points that are simulated.
const maxPoint, maxConcurrency = 1 << 20, 4096

// readPoints reads measured points in the form of AIConfigurator's silicon_sample.csv: columns are found by their
// names, lines of aggregated serving (mode agg) without pipeline or data parallelism are taken, others passed over.
func readPoints(r io.Reader) ([]point, error) {
	lines := csv.NewReader(r)
	header, err := lines.Read()
	if err != nil {
		return nil, fmt.Errorf("cannot read the header: %w", err)
	}
	column := make(map[string]int)
	for i, name := range header {
		column[name] = i
	}
	for _, name := range []string{"id", "silicon_data_source", "backend", "model_path", "system", "precision", "mode", "isl", "osl", "batch_size", "tp_size", "pp_size",
		"attention_dp_size", "silicon_ttft_ms", "silicon_tpot_ms"} {
		if _, ok := column[name]; !ok {
			return nil, fmt.Errorf("cannot read points: there is no column %s", name)
		}
	}
	var out []point
	for {
		f, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		get := func(name string) string { return f[column[name]] }
		if get("mode") != "agg" || alone(get("pp_size")) != 1 || alone(get("attention_dp_size")) != 1 {
			continue
		}
		p := point{id: get("id"), backend: get("backend"), model: modelName(get("model_path")), gpu: get("system"), precision: get("precision"),
			fixed: strings.Contains(get("silicon_data_source"), "gap-analysis")}
		if p.precision == "" {
			p.precision = "bf16"
		}
		if err := p.numbers(get); err != nil {
			at, _ := lines.FieldPos(0)
			return nil, fmt.Errorf("cannot read line %d: %w", at, err)
		}
		out = append(out, p)
	}
}

func (p *point) numbers(get func(string) string) error {
	for name, to := range map[string]*int{"isl": &p.input, "osl": &p.output, "batch_size": &p.concurrency, "tp_size": &p.tp} {
		n, err := strconv.Atoi(get(name))
		if err != nil || n < 1 || n > maxPoint {
			return fmt.Errorf("%s is %q, want a number from 1 to %d", name, get(name), maxPoint)
		}
		*to = n
	}
	for name, to := range map[string]*float64{"silicon_ttft_ms": &p.ttft, "silicon_tpot_ms": &p.tpot} {
		x, err := strconv.ParseFloat(get(name), 64)
		if err != nil || !(x > 0 && x < 1e9) {
			return fmt.Errorf("%s is %q, want a number above 0", name, get(name))
		}
		*to = x
	}
	return nil
}

// alone reads a degree of parallelism, where nothing and 0 mean 1.
func alone(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 1
	}
	return max(n, 1)
}

// of says that the profile is of what the point was measured on.
func (p *point) of(profile *Profile) bool {
	gpu, _, _ := strings.Cut(profile.GPU, "-")
	system, _, _ := strings.Cut(p.gpu, "_")
	return p.model == profile.Model && strings.EqualFold(gpu, system) && p.tp == profile.TP && p.precision == profile.Precision && p.backend == profile.Backend()
}

// modelName is a model's name as profiles have it, without owner, precision and what it was tuned for.
func modelName(path string) string {
	name := path[strings.LastIndexByte(path, '/')+1:]
	for _, suffix := range []string{"-FP8", "-NVFP4", "-Instruct"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}
