package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Suite is rows that belong together.
type Suite struct {
	// Name is for the command line, Letter begins the ids of its rows, Title says what they are.
	Name, Letter, Title string
	Rows                []Row
}

// Suites lists all rows there are.
func Suites() []Suite {
	return []Suite{
		{"rows", "A", "mixed, bursty, prefix and uniform traffic", RowsA()},
		{"sessions", "B", "agents and chats", RowsB()},
		{"columns", "C", "long conversations, questions about documents, agents", rowsC()},
		{"vendor", "V", "the conditions of the vendor's table", rowsV()},
		{"fleets", "H", "fleets and traffic on which nothing was tuned", rowsH()},
		{"recovery", "R", "back from thrashed caches and 5 s of backlog everywhere", rowsR()},
		{"adapters", "L", "more adapters than slots for them", RowsL()},
	}
}

// SelectSuites lists the letters of the suites of these names; "all" means all.
func SelectSuites(names []string) ([]string, error) {
	var letters, known []string
	for _, s := range Suites() {
		known = append(known, s.Name)
		if slices.Contains(names, s.Name) || slices.Contains(names, "all") {
			letters = append(letters, s.Letter)
		}
	}
	for _, name := range names {
		if name != "all" && !slices.Contains(known, name) {
			return nil, fmt.Errorf("cannot find suite %q: known are all, %s", name, strings.Join(known, ", "))
		}
	}
	return letters, nil
}

// rowsC lists the columns of experiment B: traffic with the statistics of Mooncake's traces, and agents that pause to
// think. The experiment ran 2.0, 2.2, 1.8 and 1.2 times what it took for one; its engines were faster. Here as large a
// share of requests is good with the best policies as was there: some 70, 45, 80 and 95 %.
func rowsC() []Row {
	eight := engines("q32-h100x2", 8)
	const sessions = 3.6
	agents := Agents(Steady(sessions))
	agents.System, agents.Systems, agents.Think, agents.Context, agents.User = 5000, 4, 5, 32000, Length{700, 1}
	const length = 240 * time.Second
	return numbered("C", []Row{
		{Name: "8×(2×H100), 32B, conversations at 1.35×", Engines: eight, Requests: Conversations(1.35).Generate, Length: length},
		{Name: "8×(2×H100), 32B, conversations at 1.55×", Engines: eight, Requests: Conversations(1.55).Generate, Length: length},
		{Name: "8×(2×H100), 32B, documents at 1.4×", Engines: eight, Requests: Questions(1.4).Generate, Length: length},
		{Name: fmt.Sprintf("8×(2×H100), 32B, thinking agents, %.1f sessions/s", sessions), Engines: eight, Requests: agents.Generate, Length: length},
	})
}

// rowsV lists the conditions that the maker of the reference measured against round robin, with its models. It says
// neither rates nor sizes of fleets: those here are ours.
func rowsV() []Row {
	return numbered("V", []Row{
		{Name: "mixed generations: 4×H100 + 4×A10G, 8B, 25 req/s", Engines: append(engines("l8-h100", 4), engines("l8-a10g", 4)...), Requests: mixed(25)},
		{Name: "mixed generations: 4×H100 + 4×(4×A10G), 32B, 20 req/s", Engines: append(engines("q32-h100x1", 4), engines("q32-a10gx4", 4)...), Requests: mixed(20)},
		{Name: "bursty: 4×(4×H100), 70B, 30 req/s", Engines: engines("l70-h100x4", 4), Requests: bursts(30)},
		{Name: "bursty: 4×(8×H100), 235B, 30 req/s", Engines: engines("q235fp8-h100x8", 4), Requests: bursts(30)},
		{Name: "shared prefixes: 4×A10G, 8B, 8 of 1k, 8 req/s", Engines: engines("l8-a10g", 4), Requests: prefixes(8, 8, 1024)},
		{Name: "uniform: 4×(8×H100), 235B, 20 req/s", Engines: engines("q235fp8-h100x8", 4), Requests: uniform(20), Uniform: true},
	})
}

// rowsH lists rows that no coefficient was chosen by.
func rowsH() []Row {
	azure := append(append(engines("l8-h100", 2), engines("l8-a100", 2)...), append(engines("l8-l40s", 2), engines("l8-a10g", 4)...)...)
	return numbered("H", []Row{
		{Name: "4×(2×H100) + 4×(2×A100), 32B, 100 prefixes of 2k by Zipf, 40 req/s", Engines: append(engines("q32-h100x2", 4), engines("q32-a100x2", 4)...),
			Requests: Mix{Rate: Steady(40), Prompt: Length{250, .8}, Output: Length{150, .8}, Prefixes: 100, PrefixTokens: 2048, Zipf: 1}.Generate},
		{Name: "2×H100 + 2×A100 + 2×L40S + 4×A10G, 8B, Azure's conversations at 5×", Engines: azure,
			Requests: Mix{Rate: Steady(5 * 5.53), Prompt: Length{1155, .55}, Output: Length{211, .8}}.Generate},
		{Name: "8×(2×H100), 32B, 50 prefixes of 1k, 25 req/s in bursts", Engines: engines("q32-h100x2", 8),
			Requests: Mix{Rate: Bursts(25, 4.5, 2, 10), Prompt: Length{200, .8}, Output: Length{150, .8}, Prefixes: 50, PrefixTokens: 1024}.Generate},
		{Name: "4×(2×H100) + 4×(2×A100), 32B, chats, 10 sessions/s", Engines: append(engines("q32-h100x2", 4), engines("q32-a100x2", 4)...),
			Requests: Chat(Steady(10)).Generate},
	})
}

// rowsR lists fleets that are flooded after 80 s, at loads they can carry.
func rowsR() []Row {
	const backlog = 5 // seconds
	flood := func(n int) []Fault {
		var out []Fault
		for i := range n {
			out = append(out, Fault{At: 80 * time.Second, Endpoint: i, Kind: Flooded, Value: backlog})
		}
		return out
	}
	agents := Agents(Steady(2)).Generate
	return numbered("R", []Row{
		{Name: "6×H100, 8B, 60 prefixes of 4k, 40 req/s, flooded", Engines: engines("l8-h100", 6), Requests: prefixes(40, 60, 4096), Faults: flood(6)},
		{Name: "8×A10G, 8B, 12 prefixes of 2k, 6 req/s, flooded", Engines: engines("l8-a10g", 8), Requests: prefixes(6, 12, 2048), Faults: flood(8)},
		{Name: "8×(2×H100), 32B, agents, 2.0 sessions/s, flooded", Engines: engines("q32-h100x2", 8), Requests: agents, Faults: flood(8)},
		{Name: "4×H100 + 4×A10G, 8B, 40 req/s, flooded", Engines: append(engines("l8-h100", 4), engines("l8-a10g", 4)...), Requests: mixed(40), Faults: flood(8)},
	})
}
