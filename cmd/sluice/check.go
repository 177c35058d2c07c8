package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/scrape"
)

func checkCommand() *cobra.Command {
	var s source
	var probe bool
	cmd := &cobra.Command{
		Use:   "check (-f FILE | --endpoint MODEL=HOST:PORT …)",
		Short: "Validate a configuration and say what goes where, and why",
		Long: `Check reads a configuration as serve does, reports every fault at once, and explains what a faultless one means: which
endpoints serve each model, how they are chosen, and what this build does not honour. It exits with 1 where serve would refuse to start.
With --probe it also asks every endpoint what it is, and names the metrics that its engine does not have.
KV events are not tried: the log of serve and /fleet say whether prefixes are exact.`,
		Example: `  sluice check -f gateway.yaml
  sluice check -f gateway.yaml --probe
  sluice check --endpoint llama=10.0.0.1:8000,10.0.0.2:8000 --kv-events-port 5557 --kv-replay-port 5558`,
		Args: noArgs("-f FILE or --endpoint MODEL=HOST:PORT"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return check(cmd.Context(), s, probe, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&s.file, "file", "f", "", "configuration `FILE`")
	cmd.Flags().StringArrayVar(&s.endpoints, "endpoint", nil, "model servers of a model, as `MODEL=HOST:PORT,…` (repeatable)")
	s.addEventFlags(cmd.Flags())
	cmd.Flags().BoolVar(&probe, "probe", false, "also ask every endpoint what it is and serves")
	return cmd
}

func check(ctx context.Context, s source, probe bool, out io.Writer) error {
	c, _, err := s.parse()
	if err != nil {
		return err
	}
	c.Explain(out)
	p, err := prepare(c, &serveOptions{}, make(tlsCache))
	if err != nil {
		return err
	}
	if probe {
		probeAll(ctx, p, out)
	}
	return c.Refusal()
}

// probeAll asks every endpoint what it is. A silent one is told and no fault of the configuration.
func probeAll(ctx context.Context, p *plan, out io.Writer) {
	var resolver fleet.Resolver
	for _, pool := range p.pools {
		fmt.Fprintf(out, "\nAsking the endpoints of %s:\n", pool.Name)
		found, faults := resolver.Resolve(ctx, pool.Endpoints)
		for _, host := range slices.Sorted(maps.Keys(faults)) {
			fmt.Fprintf(out, "  %v\n", faults[host])
		}
		for _, e := range found {
			fmt.Fprintf(out, "  %s: %s\n", e.Name, probeWords(ctx, e, pool.Model))
		}
	}
}

// probeWords asks one endpoint and says what it answered.
func probeWords(ctx context.Context, e fleet.Endpoint, model string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	f, err := scrape.Probe(ctx, e)
	if err != nil {
		return err.Error()
	}
	engine := f.Engine
	if engine == "" {
		engine = "an engine that doesn't say which"
	}
	var models []string
	serves := model == ""
	for _, m := range f.Models {
		models = append(models, m.ID)
		serves = serves || m.ID == model
	}
	words := fmt.Sprintf("%s, serves %s", engine, strings.Join(models, ", "))
	if !serves {
		words += fmt.Sprintf("; it does not list %q, and may answer 404", model)
	}
	switch {
	case len(f.Missing) == 0:
	case f.MetricsPath == "":
		words += "; " + strings.Join(f.Missing, "; ")
	default:
		words += "; does not say " + strings.Join(f.Missing, ", ")
	}
	return words
}
