package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/sluice-gateway/sluice/extproc"
	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/kube"
	"github.com/sluice-gateway/sluice/peer"
	"github.com/sluice-gateway/sluice/proxy"
	"github.com/sluice-gateway/sluice/scrape"
)

var rewrite = flag.Bool("rewrite", false, "write docs/reference.md instead of comparing it")

// describer is a Registerer that only takes descriptions.
type describer struct{ lines []string }

var description = regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}`)

func (d *describer) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() { c.Describe(ch); close(ch) }()
	for desc := range ch {
		m := description.FindStringSubmatch(desc.String())
		if m == nil {
			return fmt.Errorf("cannot read the description %s", desc)
		}
		labels := strings.ReplaceAll(m[3], ",", ", ")
		d.lines = append(d.lines, fmt.Sprintf("| `%s` | %s | %s |", m[1], labels, strings.ReplaceAll(m[2], `\"`, `"`)))
	}
	return nil
}

func (d *describer) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

func (d *describer) Unregister(prometheus.Collector) bool { return false }

// reference is what docs/reference.md holds: the flags of each command, the fields of documents, and the metrics.
func reference(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Reference\n\nFlags, the fields of configuration files, metrics: made from the program itself by `go test ./cmd/sluice -rewrite`.\n")
	for _, cmd := range root().Commands() {
		if !cmd.HasAvailableFlags() || cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		commandFlags(&b, "sluice "+cmd.Use, cmd)
		for _, below := range cmd.Commands() {
			if below.HasAvailableLocalFlags() {
				commandFlags(&b, "sluice "+cmd.Name()+" "+below.Use, below)
			}
		}
	}
	documents(&b, readSchema(t))
	d := new(describer)
	f := new(fleet.Fleet)
	now := func() time.Duration { return 0 }
	newReloads(d)
	d.MustRegister(newFleetCollector(f, now), newFollowed(nil))
	peer.New(f, peer.Options{Now: now, Registerer: d})
	proxy.New(f, proxy.Options{}, d, now, nil)
	extproc.New(f, extproc.Options{}, d, now, nil)
	if _, err := scrape.New(f, scrape.Options{Registerer: d}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.NewController(&rest.Config{}, kube.ControlOptions{Log: slog.New(slog.DiscardHandler), Registerer: d}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(d.lines)
	d.lines = slices.Compact(d.lines) // both front doors have those of requests
	b.WriteString("\n## Metrics\n\n| metric | labels | meaning |\n| --- | --- | --- |\n" + strings.Join(d.lines, "\n") + "\n")
	return b.String()
}

func commandFlags(b *strings.Builder, use string, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n## `%s`\n\n%s.\n\n| flag | default | meaning |\n| --- | --- | --- |\n", use, cmd.Short)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		if name != "" {
			name = " " + name
		}
		value := f.DefValue
		if value == "[]" {
			value = ""
		}
		fmt.Fprintf(b, "| `--%s%s` | %s | %s |\n", f.Name, name, value, strings.ReplaceAll(usage, "|", `\|`))
	})
}

// The reference page says what the program says.
func TestReference(t *testing.T) {
	const path = "../../docs/reference.md"
	want := reference(t)
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("docs/reference.md is not what the program says (%v): run go test ./cmd/sluice -rewrite and review the change", err)
	}
	for _, line := range strings.Split(want, "\n") {
		if strings.HasPrefix(line, "| `sluice_") && strings.Count(line, "|") == 4 && strings.HasSuffix(line, "|  |") {
			t.Errorf("metric without help: %s", line)
		}
	}
}
