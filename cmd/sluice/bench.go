package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/sim"
)

type benchOptions struct {
	noLabels, json, check, share  bool
	unseen, rowsGiven             bool
	seeds, replicas               int
	rows, suites, policies, views []string
	scrape, wire, length          time.Duration
	trace, workload, fleet        string
	plot, markdown                string
	calibration                   string
	speed, rate                   float64
	speedGiven, rateGiven, seeded bool
	live                          liveOptions
}

// traceFleet is what a trace is replayed on unless --fleet says otherwise.
const traceFleet = "q32-h100x2=8"

func benchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how good the decisions are, against other policies on simulated engines",
		Long: `Measure how good the decisions are: the gateway's own code decides for simulated engines, beside the published policies of other projects and
papers, and a greedy that knows every engine's exact state. Every policy gets the same traffic, seed by seed, so that small differences show.

Suites: rows (A: mixed, bursty, prefix and uniform traffic), sessions (B: agents and chats), columns (C: long conversations and documents, up to
overload), vendor (V: the conditions of the vendor's table), fleets (H: what nothing was tuned on), recovery (R: back from thrashed caches and
backlog), adapters (L). --workload and --trace make other rows. The same command gives the same figures on any number of cores.

With --live the traffic goes to real servers instead, the same at each, one after another in rounds; OPENAI_API_KEY is the bearer token, if they want one.`,
		Example: `  sluice bench                                        # rows A, 4 seeds
  sluice bench --suite all --seeds 20 --check         # everything: half an hour; exit status 1 when a goal is missed
  sluice bench --rows A1,B --policies lmetric,latency --replicas 3 --plot bench.html
  sluice bench --workload prefixes --rate 120 --fleet l8-h100=4,l8-a10g=4 --measures all
  sluice bench --trace conversation_trace.jsonl --speed 2 --json
  sluice bench --live --target ours=http://127.0.0.1:8080 --target theirs=http://127.0.0.1:9000 --workload chat --rate 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.rowsGiven = cmd.Flags().Changed("rows")
			o.speedGiven, o.rateGiven, o.seeded = cmd.Flags().Changed("speed"), cmd.Flags().Changed("rate"), cmd.Flags().Changed("seeds")
			if o.live.on {
				return liveBench(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			if err := onlyLive(cmd.Flags()); err != nil {
				return err
			}
			return bench(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.seeds, "seeds", 4, "how often each run is repeated with other traffic; intervals and verdicts need at least 2, those of --live 3")
	f.StringSliceVar(&o.suites, "suite", nil, "`NAMES` of suites: rows, sessions, columns, vendor, fleets, recovery, adapters, all")
	f.StringSliceVar(&o.rows, "rows", []string{"A"}, "`IDS` of rows, such as A1,A7,B; a letter alone means all rows of its suite")
	f.StringSliceVar(&o.policies, "policies", []string{"all"}, "`NAMES` of policies; all means all of them")
	f.StringSliceVar(&o.views, "measures", []string{"ttft"}, "`NAMES` of what to print: ttft, pairs, tpot, e2e, fleet, all")
	f.BoolVar(&o.noLabels, "no-labels", false, "don't tell the gateway which GPU an endpoint has: it has to tell kinds apart by their speed")
	f.IntVar(&o.replicas, "replicas", 1, "how many gateways there are")
	f.BoolVar(&o.share, "share", true, "let several gateways tell each other what they do, as with serve --peers")
	f.DurationVar(&o.scrape, "scrape", 50*time.Millisecond, "time between two readings of an endpoint")
	f.DurationVar(&o.wire, "wire", 2*time.Millisecond, "mean time after which the gateway hears of first tokens, of a step's tokens and of ends, at random (0: at once)")
	f.DurationVar(&o.length, "for", 0, "how long requests arrive, of which the first 20s don't count (0: a trace's own length, else 3m)")
	f.StringVar(&o.trace, "trace", "", "replay the requests of `FILE` on --fleet: lines of JSON as Mooncake's traces, or CSV as Azure's")
	f.Float64Var(&o.speed, "speed", 1, "how many times as fast the trace runs")
	f.StringVar(&o.workload, "workload", "", "make traffic of `KIND`: mixed, bursts, prefixes, uniform, chat, agents, conversations or documents")
	f.Float64Var(&o.rate, "rate", 0, "the workload's requests, or sessions of chat and agents, a second (0: as in rows A and B)")
	f.StringVar(&o.fleet, "fleet", "", "`PROFILE=COUNT`[,PROFILE=COUNT]: engines for --trace (default "+traceFleet+") and --workload (default: as in the row it is like)")
	f.BoolVar(&o.json, "json", false, "print the table as JSON")
	f.StringVar(&o.plot, "plot", "", "write distributions and intervals as one HTML page to `FILE`")
	f.StringVar(&o.markdown, "markdown", "", "write the table and how the goals fare into `FILE`, between its lines "+markdownBegin+" and "+markdownEnd)
	f.BoolVar(&o.unseen, "unseen", false, "compare the default profile with itself where nobody sees the answers, as behind Envoy, in rows A, B1, C1 and the demo's "+
		"scenarios unless --rows says otherwise; exit with status 1 when the first token takes over 10 % longer somewhere")
	f.BoolVar(&o.check, "check", false, "print how each goal fares; exit with status 1 when one is missed")
	f.StringVar(&o.calibration, "calibration", "", "instead compare simulated engines with measured ones, the points in `FILE`: CSV as AIConfigurator's silicon_sample.csv")
	liveFlags(f, &o.live)
	cmd.MarkFlagsMutuallyExclusive("rows", "suite", "trace", "workload")
	for _, other := range []string{"policies", "markdown", "plot", "check", "live", "calibration"} {
		cmd.MarkFlagsMutuallyExclusive("unseen", other)
	}
	for _, other := range []string{"rows", "suite", "trace", "workload"} {
		cmd.MarkFlagsMutuallyExclusive(other, "calibration")
	}
	return cmd
}

func bench(ctx context.Context, o *benchOptions, out, notes io.Writer) error {
	if o.calibration != "" {
		return calibrate(ctx, o, out)
	}
	e, err := o.experiment()
	if err != nil {
		return err
	}
	views, err := sim.SelectViews(o.views)
	if err != nil {
		return err
	}
	if err := o.tryFiles(); err != nil {
		return err
	}
	p := &benchProgress{out: notes, terminal: columns(notes) > 0}
	e.Progress = p.set
	every := 30 * time.Second
	if p.terminal {
		every = time.Second
	}
	stop := p.start(every)
	table, err := e.Run(ctx)
	stop()
	if err != nil {
		return fmt.Errorf("cannot finish the bench: %w", err)
	}
	if o.unseen && !o.json {
		return writeUnseen(out, notes, table)
	}
	if err := o.write(out, table, views); err != nil || !o.check {
		return err
	}
	return o.judge(table, out, notes)
}

// judge prints how the goals fare, and fails when one is missed.
func (o *benchOptions) judge(t *sim.Table, out, notes io.Writer) error {
	goals := t.Goals()
	if !o.json {
		fmt.Fprint(out, goalsText(goals), notesText(t.Notes()))
	}
	missed := 0
	for _, g := range goals {
		if g.Outcome == sim.Missed {
			missed++
		}
	}
	if missed > 0 {
		fmt.Fprintf(notes, "%d of %d goals missed\n", missed, len(goals))
		return errSaid
	}
	return nil
}

// tryFiles opens what is to be written: a bench that ends in an error here would have been in vain.
func (o *benchOptions) tryFiles() error {
	if o.plot != "" {
		f, err := os.OpenFile(o.plot, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("cannot write plot: %w", err)
		}
		_ = f.Close() // nothing was written
	}
	if o.markdown == "" {
		return nil
	}
	_, _, err := splitMarkdown(o.markdown)
	return err
}

// write puts the table into the files asked for, and prints it.
func (o *benchOptions) write(out io.Writer, t *sim.Table, views []sim.View) error {
	if o.plot != "" {
		if err := writePlot(o.plot, t); err != nil {
			return fmt.Errorf("cannot write plot %q: %w", o.plot, err)
		}
	}
	if o.markdown != "" {
		if err := writeMarkdown(o.markdown, t, views); err != nil {
			return err
		}
	}
	if !o.json {
		fmt.Fprintf(out, "%s\n\n%s", benchTitle(t), t.Text(views))
		return nil
	}
	text, err := json.MarshalIndent(struct {
		*sim.Table
		Goals []sim.Goal `json:"goals"`
		Notes []sim.Note `json:"notes"`
	}{t, t.Goals(), t.Notes()}, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot print the table: %w", err)
	}
	fmt.Fprintf(out, "%s\n", text)
	return nil
}

// benchTitle says what the figures are of.
func benchTitle(t *sim.Table) string {
	labels, gateways := "with", "one gateway"
	if !t.Labels {
		labels = "without"
	}
	if t.Replicas > 1 {
		gateways = fmt.Sprintf("%d gateways that share nothing", t.Replicas)
		if t.Share {
			gateways = fmt.Sprintf("%d gateways that tell each other what they do", t.Replicas)
		}
	}
	return fmt.Sprintf("Times in seconds, to the first token unless said otherwise; %s; %s, %s GPU labels", seedsText(t.Seeds, "means of %d seeds ± 95 %% interval"), gateways, labels)
}

// seedsText says how many seeds figures are means of.
func seedsText(seeds int, many string) string {
	if seeds == 1 {
		return "of one seed, which gives no interval and no verdict"
	}
	return fmt.Sprintf(many, seeds)
}

func (o *benchOptions) experiment() (sim.Experiment, error) {
	e := sim.Experiment{Seeds: o.seeds, Labels: !o.noLabels, Replicas: o.replicas, Share: o.share, Scrape: o.scrape, Wire: o.wire, For: o.length,
		Objective: sim.Objective{TTFT: o.live.limitTTFT.Seconds(), TPOT: o.live.limitTPOT.Seconds()}}
	switch {
	case e.Seeds < 1 || o.replicas < 1:
		return e, fmt.Errorf("cannot bench: --seeds %d and --replicas %d must be at least 1", e.Seeds, o.replicas)
	case min(o.scrape-1, o.length, o.wire) < 0:
		return e, fmt.Errorf("cannot bench: --scrape %v must be above 0, --for %v and --wire %v not below", o.scrape, o.length, o.wire)
	case o.fleet != "" && o.trace == "" && o.workload == "":
		return e, fmt.Errorf("cannot bench: --fleet needs --trace or --workload, rows bring their own")
	case o.speedGiven && o.trace == "" || o.rateGiven && o.workload == "":
		return e, fmt.Errorf("cannot bench: --speed is for --trace, --rate for --workload")
	}
	var err error
	if e.Policies, err = sim.SelectPolicies(o.policies); err == nil {
		e.Rows, err = o.selectRows()
	}
	if o.unseen {
		e.Policies = unseenPolicies()
	}
	return e, err
}

func (o *benchOptions) selectRows() ([]sim.Row, error) {
	if len(o.suites) > 0 {
		letters, err := sim.SelectSuites(o.suites)
		if err != nil {
			return nil, err
		}
		return sim.SelectRows(letters)
	}
	if o.unseen && !o.rowsGiven && o.trace == "" && o.workload == "" {
		return unseenRows()
	}
	if o.trace == "" && o.workload == "" {
		return sim.SelectRows(o.rows)
	}
	var fleet []sim.EngineConfig
	if text := cmp.Or(o.fleet, map[bool]string{true: traceFleet}[o.trace != ""]); text != "" {
		var err error
		if fleet, err = sim.ParseFleet(text); err != nil {
			return nil, err
		}
	}
	if o.workload != "" {
		row, err := sim.WorkloadRow(o.workload, o.rate, fleet)
		return []sim.Row{row}, err
	}
	text, err := os.ReadFile(o.trace)
	if err != nil {
		return nil, fmt.Errorf("cannot read trace: %w", err)
	}
	row, err := sim.TraceRow(filepath.Base(o.trace), text, o.speed, fleet)
	return []sim.Row{row}, err
}

// benchProgress tells how many runs are done, to whoever waits longer than a moment.
type benchProgress struct {
	out      io.Writer
	terminal bool
	done, of atomic.Int64
	more     atomic.Int64 // how long the others will take, in nanoseconds
	// words, if there is one, makes the text instead.
	words func() string
}

func (p *benchProgress) set(done, of int, more time.Duration) {
	p.of.Store(int64(of))
	p.more.Store(int64(more))
	p.done.Store(int64(done))
}

// start reports after two seconds and then in regular intervals until stop is called.
func (p *benchProgress) start(every time.Duration) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		said := false
		for wait := 2 * time.Second; ; wait = every {
			select {
			case <-end:
				if said && p.terminal {
					fmt.Fprint(p.out, "\r\x1b[K")
				}
				return
			case <-time.After(wait):
				said = true
				p.say()
			}
		}
	}()
	return func() { close(end); <-ended }
}

func (p *benchProgress) say() {
	done, of := p.done.Load(), p.of.Load()
	text := fmt.Sprintf("%d of %d runs", done, of)
	if p.words != nil {
		text = p.words()
	}
	if more := time.Duration(p.more.Load()); more > 0 {
		text += fmt.Sprintf(", about %v more", more.Round(time.Second))
	}
	if p.terminal {
		fmt.Fprintf(p.out, "\r%s\x1b[K", text)
	} else {
		fmt.Fprintln(p.out, text)
	}
}
