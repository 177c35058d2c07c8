package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/sim"
)

// What the bench writes into a page goes between these lines.
const markdownBegin, markdownEnd = "<!-- sluice bench -->", "<!-- /sluice bench -->"

// mostDetails is how many of a goal's details a page shows; --check prints all.
const mostDetails = 6

// splitMarkdown reads a page and gives what comes before and after the bench's part, the markers included.
func splitMarkdown(path string) (before, after string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("cannot write markdown: %w", err)
	}
	before, rest, begun := strings.Cut(string(text), markdownBegin+"\n")
	_, after, ended := strings.Cut(rest, markdownEnd)
	if !begun || !ended {
		return "", "", fmt.Errorf("cannot write markdown into %q: it needs a line %s and after it one %s", path, markdownBegin, markdownEnd)
	}
	return before + markdownBegin + "\n", markdownEnd + after, nil
}

// writeMarkdown replaces what stands between the markers.
func writeMarkdown(path string, t *sim.Table, views []sim.View) error {
	before, after, err := splitMarkdown(path)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n### Goals\n\n", before)
	writeGoals(&b, t.Goals())
	if notes := t.Notes(); len(notes) > 0 {
		b.WriteString("\n### Where others are better and no goal is missed\n\n")
		for _, n := range notes {
			fmt.Fprintf(&b, "- %s, %s\n", n.Row, n.Text)
		}
	}
	fmt.Fprintf(&b, "\n### In short\n\nTimes to first token in seconds: mean / P50 / P95 / P99; %s.\n\n%s", seedsText(t.Seeds, "means of %d seeds"), t.Standing())
	fmt.Fprintf(&b, "\n### All figures\n\n%s\n\n<details>\n<summary>%d rows</summary>\n\n```text\n%s```\n\n</details>\n\n%s", benchTitle(t), len(t.Rows),
		strings.TrimSuffix(t.Text(views), "\n"), after)
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("cannot write markdown: %w", err)
	}
	return nil
}

// writeGoals counts the goals and lists them, those that are not met first.
func writeGoals(b *strings.Builder, goals []sim.Goal) {
	var count [sim.Missed + 1]int
	for _, g := range goals {
		count[g.Outcome]++
	}
	fmt.Fprintf(b, "Of %d goals %d are met, %d undecided, %d missed.\n\n| row | goal | outcome |\n| --- | --- | --- |\n", len(goals), count[sim.Met],
		count[sim.Open], count[sim.Missed])
	sorted := slices.Clone(goals)
	slices.SortStableFunc(sorted, func(a, b sim.Goal) int { return cmp.Compare(b.Outcome, a.Outcome) })
	for _, g := range sorted {
		outcome := g.Outcome.String()
		if details := strings.Split(g.Details, "; "); len(details) > mostDetails {
			outcome += fmt.Sprintf(": %s; and %d more", strings.Join(details[:mostDetails], "; "), len(details)-mostDetails)
		} else if g.Details != "" {
			outcome += ": " + g.Details
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", g.Row, g.Name, strings.ReplaceAll(outcome, "|", "\\|"))
	}
}

// notesText is where others are better and no goal is missed.
func notesText(notes []sim.Note) string {
	var b strings.Builder
	for _, n := range notes {
		fmt.Fprintf(&b, "note       %-3s  %s\n", n.Row, n.Text)
	}
	return b.String()
}

// goalsText is how each goal fared, a line or more each.
func goalsText(goals []sim.Goal) string {
	var b strings.Builder
	for _, g := range goals {
		fmt.Fprintf(&b, "%-9s  %-3s  %s", g.Outcome, g.Row, g.Name)
		if g.Details != "" {
			fmt.Fprintf(&b, "\n%16s%s", "", strings.ReplaceAll(g.Details, "; ", "\n"+strings.Repeat(" ", 16)))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
