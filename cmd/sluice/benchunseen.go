package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/sluice-gateway/sluice/sim"
)

// mostUnseen is how many times longer the first token may take where nobody sees the answers.
const mostUnseen = 1.1

// unseenRows are the rows that --unseen compares in unless others are asked for: those that the project is judged by, and
// what the demo plays.
func unseenRows() ([]sim.Row, error) {
	rows, err := sim.SelectRows([]string{"A", "B1", "C1"})
	if err != nil {
		return nil, err
	}
	for _, s := range scenarios() {
		if s.unlabelled || s.faults {
			continue // the fleet and traffic of another one
		}
		row := sim.Row{ID: s.name, Name: "the demo's scenario " + s.name}
		for _, name := range s.engines {
			p, err := sim.ProfileNamed(name)
			if err != nil {
				return nil, err
			}
			row.Engines = append(row.Engines, sim.EngineConfig{Profile: p, AdapterSlots: s.slots, AdapterLoad: adapterLoad, AdapterStep: adapterStep})
		}
		mix := s.mix
		mix.Adapters = s.adapterNames()
		row.Requests = mix.Generate
		rows = append(rows, row)
	}
	return rows, nil
}

// unseenPolicies are those that --unseen compares, in this order.
func unseenPolicies() []sim.Policy { return []sim.Policy{sim.Latency(), sim.Unseen()} }

// writeUnseen prints the table of --unseen, and fails where a row is beyond the limit.
func writeUnseen(out, notes io.Writer, t *sim.Table) error {
	text, beyond := unseenText(t)
	fmt.Fprint(out, text)
	if beyond > 0 {
		fmt.Fprintf(notes, "%d of %d rows are beyond %.0f %%\n", beyond, len(t.Rows), 100*(mostUnseen-1))
		return errSaid
	}
	return nil
}

// unseenText is the table of --unseen as Markdown, and how many rows are beyond the limit.
func unseenText(t *sim.Table) (text string, beyond int) {
	var b strings.Builder
	b.WriteString("| row | | mean, seen | unseen | | P95, seen | unseen | |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range t.Rows {
		l := &t.Rows[i]
		seen, unseen := &l.Cells[0].Figures, &l.Cells[1].Figures
		fmt.Fprintf(&b, "| %s | %s |", l.ID, l.Name)
		fits := true
		for _, m := range []sim.Measure{sim.MeanTTFT, sim.P95} {
			ratio := unseen[m].Mean / seen[m].Mean
			fits = fits && ratio <= mostUnseen
			fmt.Fprintf(&b, " %.1f ms | %.1f ms | %+.1f %% |", 1000*seen[m].Mean, 1000*unseen[m].Mean, 100*(ratio-1))
		}
		b.WriteString("\n")
		if !fits {
			beyond++
		}
	}
	return b.String(), beyond
}
