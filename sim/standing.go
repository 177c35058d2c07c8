package sim

import (
	"fmt"
	"strings"
)

// Standing prints the table in short as Markdown: each row's times to first token, mean / P50 / P95 / P99 in seconds,
// of the default profile, with KV events, of the best other policy by its mean, of round robin and of the all-knowing
// greedy.
func (t *Table) Standing() string {
	var b strings.Builder
	b.WriteString("| row | " + Latency().Name + " | with KV events | best other | round robin | greedy |\n| --- | --- | --- | --- | --- | --- |\n")
	for i := range t.Rows {
		l := &t.Rows[i]
		best := l.best()
		name := ""
		if best != nil {
			name = best.Policy + ": "
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s%s | %s | %s |\n", l.ID, l.cell(Latency()).brief(), l.cell(ExactLatency()).brief(), name, best.brief(),
			l.cell(RoundRobin()).brief(), l.cell(Greedy()).brief())
	}
	return b.String()
}

// cell finds a policy's figures, nil where it was not run.
func (l *Line) cell(p Policy) *Cell {
	for i := range l.Cells {
		if l.Cells[i].Policy == p.Name {
			return &l.Cells[i]
		}
	}
	return nil
}

// best is the other policy with the least mean, nil for none.
func (l *Line) best() *Cell {
	var best *Cell
	for i := range l.Cells {
		c := &l.Cells[i]
		if rival(c.Policy) && (best == nil || c.Figures[MeanTTFT].Mean < best.Figures[MeanTTFT].Mean) {
			best = c
		}
	}
	return best
}

// brief is the times to first token without their intervals.
func (c *Cell) brief() string {
	if c == nil {
		return "–"
	}
	var out []string
	for m := range P99 + 1 {
		text := figure(c.Figures[m].Mean)
		if c.AtLeast[m] {
			text = ">" + text
		}
		out = append(out, text)
	}
	return strings.Join(out, " / ")
}
