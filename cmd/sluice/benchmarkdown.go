package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/sluice-gateway/sluice/sim"
)

// What the bench writes into a page goes between these lines.
const markdownBegin, markdownEnd = "<!-- sluice bench -->", "<!-- /sluice bench -->"

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
	fmt.Fprintf(&b, "%s\n### Goals\n\n| row | goal | outcome |\n| --- | --- | --- |\n", before)
	for _, g := range t.Goals() {
		outcome := g.Outcome.String()
		if g.Details != "" {
			outcome += ": " + g.Details
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", g.Row, g.Name, strings.ReplaceAll(outcome, "|", "\\|"))
	}
	fmt.Fprintf(&b, "\n### Figures\n\n%s\n\n```text\n%s```\n\n%s", benchTitle(t), strings.TrimSuffix(t.Text(views), "\n"), after)
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("cannot write markdown: %w", err)
	}
	return nil
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
