package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Row is a fleet with its traffic.
type Row struct {
	// ID is short, for people to choose rows by; Name says what the row is.
	ID, Name string
	Engines  []EngineConfig
	// Requests draws the traffic of a seed until the end. It is called from several goroutines at once.
	Requests func(seed uint64, end time.Duration) []Request
	// Faults happen to its engines.
	Faults []Fault
	// Uniform says that engines and requests are alike, so that taking turns is hard to better.
	Uniform bool
	// Length is how long requests arrive unless an experiment says otherwise; 0 means 180 s.
	Length time.Duration
}

// RowsA lists the rows of experiment A: mixed, bursty, prefix and uniform.
func RowsA() []Row {
	eight := append(engines("l8-h100", 4), engines("l8-a10g", 4)...)
	return numbered("A", []Row{
		{Name: "4×H100 + 4×A10G, 8B, 40 req/s", Engines: eight, Requests: mixed(40)},
		{Name: "4×H100 + 4×A10G, 8B, 110 req/s", Engines: eight, Requests: mixed(110)},
		{Name: "4×H100 + 4×(4×A10G), 32B, 16 req/s", Engines: append(engines("q32-h100x1", 4), engines("q32-a10gx4", 4)...), Requests: mixed(16)},
		{Name: "4×(8×H100), 70B, 40 req/s in bursts", Engines: engines("l70-h100x8", 4), Requests: bursts(40)},
		{Name: "6×H100, 8B, 60 prefixes of 4k, 80 req/s", Engines: engines("l8-h100", 6), Requests: prefixes(80, 60, 4096)},
		{Name: "8×A10G, 8B, 12 prefixes of 2k, 10 req/s, cold", Engines: engines("l8-a10g", 8), Requests: prefixes(10, 12, 2048)},
		{Name: "4×(8×H100), 70B, 35 req/s, uniform", Engines: engines("l70-h100x8", 4), Requests: uniform(35), Uniform: true},
	})
}

func mixed(rate float64) func(uint64, time.Duration) []Request {
	return Mix{Rate: Steady(rate), Prompt: Length{600, .8}, Output: Length{200, .8}}.Generate
}

func bursts(rate float64) func(uint64, time.Duration) []Request {
	return Mix{Rate: Bursts(rate, 4.5, 2, 10), Prompt: Length{900, 1}, Output: Length{250, 1}}.Generate
}

func prefixes(rate float64, groups, tokens int) func(uint64, time.Duration) []Request {
	return Mix{Rate: Steady(rate), Prompt: Length{250, .8}, Output: Length{150, .8}, Prefixes: groups, PrefixTokens: tokens}.Generate
}

func uniform(rate float64) func(uint64, time.Duration) []Request {
	return Mix{Rate: Steady(rate), Prompt: Length{600, .6}, Output: Length{200, .6}}.Generate
}

// RowsB lists conversations and agents, after experiment B: traffic that lives by finding its beginnings again, up to
// where caches hardly hold what is in use.
func RowsB() []Row {
	eight := engines("q32-h100x2", 8)
	var rows []Row
	for _, rate := range []float64{3, 4.5, 6} {
		rows = append(rows, Row{Name: fmt.Sprintf("8×(2×H100), 32B, agents, %.1f sessions/s", rate), Engines: eight, Requests: Agents(Steady(rate)).Generate})
	}
	for _, rate := range []float64{10, 18} {
		rows = append(rows, Row{Name: fmt.Sprintf("8×(2×H100), 32B, chats, %.0f sessions/s", rate), Engines: eight, Requests: Chat(Steady(rate)).Generate})
	}
	return numbered("B", rows)
}

func numbered(letter string, rows []Row) []Row {
	for i := range rows {
		rows[i].ID = letter + strconv.Itoa(i+1)
	}
	return rows
}

// SelectRows finds rows by their IDs, or all of a suite by its letter, in the order given.
func SelectRows(ids []string) ([]Row, error) {
	suites := Suites()
	var out []Row
	for _, id := range ids {
		n := len(out)
		for _, s := range suites {
			for _, r := range s.Rows {
				if strings.EqualFold(id, r.ID) || strings.EqualFold(id, s.Letter) {
					out = append(out, r)
				}
			}
		}
		if len(out) == n {
			var known []string
			for _, s := range suites {
				known = append(known, fmt.Sprintf("%s1 to %s%d", s.Letter, s.Letter, len(s.Rows)))
			}
			return nil, fmt.Errorf("cannot find row %q: rows are %s; a letter alone means all of them", id, strings.Join(known, ", "))
		}
	}
	return out, nil
}

// maxEngines bounds fleets, so that a slip of the finger is an error and not a request for all memory.
const maxEngines = 10000

// ParseFleet reads a fleet as PROFILE=COUNT, separated by commas.
func ParseFleet(text string) ([]EngineConfig, error) {
	var out []EngineConfig
	for part := range strings.SplitSeq(text, ",") {
		name, count, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > maxEngines-len(out) {
			return nil, fmt.Errorf("cannot read fleet %q: want PROFILE=COUNT[,PROFILE=COUNT], such as l8-h100=4,l8-a10g=4, of at most %d in all", text, maxEngines)
		}
		p, err := ProfileNamed(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read fleet %q: %w", text, err)
		}
		out = append(out, slices.Repeat([]EngineConfig{{Profile: p}}, n)...)
	}
	return out, nil
}

// WorkloadRow is one kind of traffic at a rate per second, of requests or (chat, agents) of sessions, on a fleet. Rate
// 0 and a nil fleet mean the row of experiment A or B that has this traffic.
func WorkloadRow(kind string, rate float64, fleet []EngineConfig) (Row, error) {
	if !(rate >= 0) || math.IsInf(rate, 1) {
		return Row{}, fmt.Errorf("cannot make workload %q: rate %v is not a number above 0", kind, rate)
	}
	type traffic = func(uint64, time.Duration) []Request
	var like string
	var usual float64
	var draw func(float64) traffic
	switch kind {
	case "mixed":
		like, usual, draw = "A1", 40, mixed
	case "bursts":
		like, usual, draw = "A4", 40, bursts
	case "prefixes":
		like, usual, draw = "A5", 80, func(rate float64) traffic { return prefixes(rate, 60, 4096) }
	case "uniform":
		like, usual, draw = "A7", 35, uniform
	case "chat":
		like, usual, draw = "B4", 10, func(rate float64) traffic { return Chat(Steady(rate)).Generate }
	case "agents":
		like, usual, draw = "B1", 3, func(rate float64) traffic { return Agents(Steady(rate)).Generate }
	case "conversations":
		like, usual, draw = "C1", 4.6, func(rate float64) traffic { return Conversations(rate / 3.4).Generate }
	case "documents":
		like, usual, draw = "C3", 5.5, func(rate float64) traffic { return Questions(rate / 3.9).Generate }
	default:
		return Row{}, fmt.Errorf("cannot find workload %q: known are mixed, bursts, prefixes, uniform, chat, agents, conversations, documents", kind)
	}
	rows, err := SelectRows([]string{like})
	if err != nil {
		return Row{}, err
	}
	rate = cmp.Or(rate, usual)
	if fleet == nil {
		fleet = rows[0].Engines
	}
	return Row{ID: kind, Name: fmt.Sprintf("%s, %s, %g/s", fleetName(fleet), kind, rate), Engines: fleet, Requests: draw(rate)}, nil
}

// TraceRow is a recorded workload, as ReadTrace reads it, on a fleet: from its first request on, speed times as fast.
// Seeds differ only in what the trace leaves open.
func TraceRow(name string, text []byte, speed float64, fleet []EngineConfig) (Row, error) {
	t, err := parseTrace(bytes.NewReader(text))
	if err != nil {
		return Row{}, fmt.Errorf("cannot use trace %q: %w", name, err)
	}
	requests, err := t.draw(speed, 1)
	if err != nil {
		return Row{}, fmt.Errorf("cannot use trace %q: %w", name, err)
	}
	if len(requests) == 0 {
		return Row{}, fmt.Errorf("cannot use trace %q: it holds no requests", name)
	}
	last := requests[len(requests)-1].At
	return Row{ID: "trace", Name: fmt.Sprintf("%s, %s at %g×", fleetName(fleet), name, speed), Engines: fleet, Length: last + traceTick,
		Requests: func(seed uint64, end time.Duration) []Request {
			requests, err := t.draw(speed, seed)
			if err != nil {
				panic(err) // the speed was fine before
			}
			i, _ := slices.BinarySearchFunc(requests, end, func(r Request, end time.Duration) int { return cmp.Compare(r.At, end) })
			return requests[:i]
		}}, nil
}

// fleetName says how many of which profile there are.
func fleetName(fleet []EngineConfig) string {
	var names []string
	for i := 0; i < len(fleet); {
		n := 1
		for i+n < len(fleet) && fleet[i+n].Profile.Name == fleet[i].Profile.Name {
			n++
		}
		names = append(names, fmt.Sprintf("%d×%s", n, fleet[i].Profile.Name))
		i += n
	}
	return strings.Join(names, " + ")
}

// engines is n engines of one profile.
func engines(profile string, n int) []EngineConfig {
	p, err := ProfileNamed(profile)
	if err != nil {
		panic(err) // a name in this file
	}
	out := make([]EngineConfig, n)
	for i := range out {
		out[i].Profile = p
	}
	return out
}
