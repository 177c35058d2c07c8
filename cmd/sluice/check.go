package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/scrape"
)

// checkOptions are the flags of check.
type checkOptions struct {
	source
	plane, tlsCert string
	probe          bool
}

func checkCommand() *cobra.Command {
	o := &checkOptions{}
	cmd := &cobra.Command{
		Use:   "check (-f FILE | --endpoint MODEL=HOST:PORT …)",
		Short: "Validate a configuration and say what goes where, and why",
		Long: `Check reads a configuration as serve does, reports every fault at once, and explains what a faultless one means: which
endpoints serve each model, how they are chosen, where the speeds come from that predictions begin with, and what this build does not honour.
It exits with 1 where serve would refuse to start; with --data-plane envoy, where serve with that flag would, or pick and envoy.
With --probe it also asks every endpoint what it is, and names the metrics that its engine does not have. It then also exits with 1 where no
endpoint of a scheduler answers: serve would start, and answer 503 for that model.
KV events are not tried: the log of serve and /fleet say whether prefixes are exact.`,
		Example: `  sluice check -f gateway.yaml
  sluice check -f gateway.yaml --probe
  sluice check -f gateway.yaml --data-plane envoy
  sluice check --endpoint llama=10.0.0.1:8000,10.0.0.2:8000 --kv-events-port 5557 --kv-replay-port 5558`,
		Args: noArgs("-f FILE or --endpoint MODEL=HOST:PORT"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return check(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "file", "f", "", "configuration `FILE`")
	f.StringArrayVar(&o.endpoints, "endpoint", nil, "model servers of a model, as `MODEL=HOST:PORT,…` (repeatable)")
	o.addEventFlags(f)
	f.StringVar(&o.plane, "data-plane", planeEmbedded, "who is to carry requests: embedded (sluice serve), or envoy (serve --data-plane envoy, and pick with envoy)")
	f.StringVar(&o.tlsCert, "tls-cert", "", "`FILE` with the certificate that Envoy is to have for clients, which spec.tls asks for; it is not read")
	f.BoolVar(&o.probe, "probe", false, "also ask every endpoint what it is and serves")
	return cmd
}

func check(ctx context.Context, o *checkOptions, out io.Writer) error {
	switch {
	case o.plane != planeEmbedded && o.plane != planeEnvoy:
		return fmt.Errorf("cannot use --data-plane %q: it is %s or %s", o.plane, planeEmbedded, planeEnvoy)
	case o.tlsCert != "" && o.plane == planeEmbedded:
		return errors.New("cannot use --tls-cert without --data-plane envoy: the embedded front door speaks no TLS")
	}
	c, _, err := o.parse()
	if err != nil {
		return err
	}
	if o.plane == planeEnvoy {
		c = c.BehindEnvoy(o.tlsCert != "")
	}
	c.Explain(out)
	p, err := prepare(c, &gatewayOptions{}, make(tlsCache))
	if err != nil {
		return err
	}
	writeSpeeds(p, out)
	var silent error
	if o.probe {
		silent = probeAll(ctx, p, out)
	}
	return errors.Join(c.Refusal(), silent)
}

// writeSpeeds says of each pool where the speeds come from that predictions begin with, endpoints alike together.
func writeSpeeds(p *plan, out io.Writer) {
	title := "\nSpeeds, as far as labels and the model's name tell, until more has been learned:\n"
	for _, pool := range p.pools {
		hosts := make(map[string][]string)
		var order []string
		for i := range pool.Endpoints {
			e := &pool.Endpoints[i]
			text := speedsText(e, fleet.CalibrationOf(e, pool.Model, nil, math.NaN()))
			if hosts[text] == nil {
				order = append(order, text)
			}
			hosts[text] = append(hosts[text], e.Host)
		}
		for _, text := range order {
			fmt.Fprintf(out, "%s  %s at %s: %s\n", title, pool.Name, someOf(hosts[text]), text)
			title = ""
		}
	}
}

// speedsText says with which speeds an endpoint begins.
func speedsText(e *fleet.Endpoint, c *fleet.Calibration) string {
	switch gpu := e.GPU(); {
	case gpu == "":
		return "neutral, learned (no label " + fleet.LabelGPU + " or " + fleet.LabelNvidiaGPU + ")"
	case c == nil:
		return fmt.Sprintf("neutral, learned (the calibration has no row for the model on %s)", gpu)
	default:
		return fmt.Sprintf("from the row %s of the calibration (%s, %s)", c.Name, c.Model, gpu)
	}
}

// someOf lists the first few hosts.
func someOf(hosts []string) string {
	const most = 3
	if len(hosts) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(hosts[:most], ", "), len(hosts)-most)
	}
	return strings.Join(hosts, ", ")
}

// probeAll asks every endpoint what it is. A silent one is told and no fault, unless all of a pool are.
func probeAll(ctx context.Context, p *plan, out io.Writer) error {
	var silent []error
	var resolver fleet.Resolver
	for _, pool := range p.pools {
		fmt.Fprintf(out, "\nAsking the endpoints of %s:\n", pool.Name)
		found, faults := resolver.Resolve(ctx, pool.Endpoints)
		for _, host := range slices.Sorted(maps.Keys(faults)) {
			fmt.Fprintf(out, "  %v\n", faults[host])
		}
		answered := false
		for _, e := range found {
			words, err := probeWords(ctx, e, &pool)
			answered = answered || err == nil
			fmt.Fprintf(out, "  %s: %s\n", e.Name, words)
		}
		if !answered && len(pool.Endpoints) > 0 {
			silent = append(silent, fmt.Errorf("no endpoint of %s answers: its requests would be answered 503", pool.Name))
		}
	}
	return errors.Join(silent...)
}

// probeWords asks one endpoint and says what it answered, or why it did not.
func probeWords(ctx context.Context, e fleet.Endpoint, pool *fleet.PoolConfig) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	f, err := scrape.Probe(ctx, e)
	if err != nil {
		return err.Error(), err
	}
	model := pool.Model
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
	return words + "; speeds: " + speedsText(&e, fleet.CalibrationOf(&e, model, f.Models, f.Reading.KVTokens)), nil
}
