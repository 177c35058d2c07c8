package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/sim"
)

// liveOptions are the flags of bench --live that bench has not without it.
type liveOptions struct {
	on        bool
	targets   []string
	model     string
	size      float64
	limitTTFT time.Duration
	limitTPOT time.Duration
}

func liveFlags(f *pflag.FlagSet, o *liveOptions) {
	f.BoolVar(&o.on, "live", false, "send --workload or --trace to the servers of --target in real time: --seeds rounds (default 4) of --for (default 1m), of which the first fifth doesn't count")
	f.StringArrayVar(&o.targets, "target", nil, "`NAME=URL` of an OpenAI-compatible server for --live (repeatable; the first is compared with the others)")
	f.StringVar(&o.model, "model", "", "`NAME` to ask for with --live (default: the first that the first target lists)")
	f.Float64Var(&o.size, "size", 1, "times the workload's prompts and answers in tokens with --live, for models with a short context")
	f.DurationVar(&o.limitTTFT, "limit-ttft", 2*time.Second, "longest time to first token that counts as good")
	f.DurationVar(&o.limitTPOT, "limit-tpot", 50*time.Millisecond, "longest mean time between tokens that counts as good")
}

// onlyLive refuses flags that mean nothing without --live.
func onlyLive(f *pflag.FlagSet) error {
	for _, name := range []string{"target", "model", "size"} {
		if f.Changed(name) {
			return fmt.Errorf("cannot bench: --%s is for --live", name)
		}
	}
	return nil
}

const (
	// liveRounds and liveLength are used unless the flags say otherwise.
	liveRounds = 4
	liveLength = time.Minute
	// liveWarmShare is the share of the time that arrivals don't count in.
	liveWarmShare = .2
	// liveGrace is how long what was sent may take to end after the last arrival.
	liveGrace = time.Minute
	// liveMost bounds the targets.
	liveMost = 32
)

// target is a server under test.
type target struct {
	name, url string
}

// live is one comparison: rounds of the same traffic at each target, one target after another, in turns.
type live struct {
	targets  []target
	model    string
	key      string
	row      sim.Row
	rounds   int
	length   time.Duration
	size     float64
	ttft     time.Duration
	tpot     time.Duration
	client   *http.Client
	progress *liveProgress
}

// liveBench carries out bench --live.
func liveBench(ctx context.Context, o *benchOptions, out, notes io.Writer) error {
	l, err := o.liveComparison()
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.MaxIdleConns = 4096, 0
	transport.DisableCompression = true
	defer transport.CloseIdleConnections()
	l.client = &http.Client{Transport: transport}
	if l.model == "" {
		if l.model, err = l.firstModel(ctx); err != nil {
			return err
		}
	}
	l.progress = &liveProgress{of: l.rounds * len(l.targets), length: l.length, began: time.Now()}
	p := &benchProgress{out: notes, terminal: columns(notes) > 0, words: func() string { return l.progress.words(time.Now()) }}
	every := 10 * time.Second
	if p.terminal {
		every = time.Second
	}
	stop := p.start(every)
	table, err := l.run(ctx)
	stop()
	if err != nil {
		return fmt.Errorf("cannot finish the bench: %w", err)
	}
	if !o.json {
		_, err = io.WriteString(out, table.String())
		return err
	}
	text, err := json.MarshalIndent(table, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot print the table: %w", err)
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}

// liveComparison checks the flags.
func (o *benchOptions) liveComparison() (*live, error) {
	l := &live{model: o.live.model, key: os.Getenv("OPENAI_API_KEY"), rounds: liveRounds, length: cmp.Or(o.length, liveLength), size: o.live.size,
		ttft: o.live.limitTTFT, tpot: o.live.limitTPOT}
	if o.seeded {
		l.rounds = o.seeds
	}
	if err := o.checkLive(l); err != nil {
		return nil, err
	}
	for _, text := range o.live.targets {
		t, err := liveTarget(text)
		if err != nil {
			return nil, err
		}
		l.targets = append(l.targets, t)
	}
	rows, err := o.selectRows()
	if err != nil {
		return nil, err
	}
	l.row = rows[0]
	return l, nil
}

// checkLive refuses flags that make no comparison.
func (o *benchOptions) checkLive(l *live) error {
	switch {
	case len(o.live.targets) == 0 || len(o.live.targets) > liveMost:
		return fmt.Errorf("cannot bench: --live needs 1 to %d targets as --target NAME=URL, got %d", liveMost, len(o.live.targets))
	case o.workload == "" && o.trace == "":
		return errors.New("cannot bench: --live needs --workload or --trace")
	case o.workload != "" && o.rate <= 0:
		return errors.New("cannot bench: --live needs --rate, since the usual ones are for fleets of GPUs")
	case l.rounds < 1 || l.length <= 0 || !(l.size > 0) || math.IsInf(l.size, 1):
		return fmt.Errorf("cannot bench: --seeds %d must be at least 1, --for %v and --size %v above 0", l.rounds, l.length, l.size)
	case o.plot != "" || o.markdown != "" || o.check || o.fleet != "":
		return errors.New("cannot bench: --plot, --markdown, --check and --fleet are not for --live")
	}
	return nil
}

// liveTarget reads NAME=URL; the URL may end in /v1, as clients are given it.
func liveTarget(text string) (target, error) {
	name, at, found := strings.Cut(text, "=")
	u, err := url.Parse(at)
	if !found || name == "" || err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return target{}, fmt.Errorf("cannot read --target %q: want NAME=URL, such as ours=http://127.0.0.1:8080", text)
	}
	return target{name, strings.TrimSuffix(strings.TrimSuffix(at, "/"), "/v1")}, nil
}

// request makes a request to a target.
func (l *live) request(ctx context.Context, method, address string, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	if l.key != "" {
		r.Header.Set("Authorization", "Bearer "+l.key)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, nil
}

// firstModel asks the first target what it serves.
func (l *live) firstModel(ctx context.Context) (string, error) {
	at := l.targets[0].url + "/v1/models"
	failed := func(err error) (string, error) {
		return "", fmt.Errorf("cannot ask %s for its models, name one with --model: %w", at, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := l.request(ctx, http.MethodGet, at, nil)
	if err != nil {
		return failed(err)
	}
	resp, err := l.client.Do(r)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list); err != nil || len(list.Data) == 0 {
		return failed(cmp.Or(err, fmt.Errorf("status %s and no model", resp.Status)))
	}
	return list.Data[0].ID, nil
}

// run plays all rounds. Which target is first changes from round to round, so that a machine that becomes slower or faster favours none.
func (l *live) run(ctx context.Context) (*liveTable, error) {
	table := &liveTable{Row: l.row.ID, Rate: l.row.Name, Model: l.model, Rounds: l.rounds, Length: l.length, TTFT: l.ttft, TPOT: l.tpot}
	runs := make([][]liveFigures, len(l.targets)) // by target, then round
	for round := range l.rounds {
		for turn := range l.targets {
			i := (round + turn) % len(l.targets)
			l.progress.begin(l.targets[i].name, time.Now())
			// Targets may share engines, which must not find in their caches what another target or, of a trace, another
			// round has sent there: each has words of its own.
			play := livePlay{live: l, url: l.targets[i].url, words: uint64(round*len(l.targets) + i + 1), warm: time.Duration(liveWarmShare * float64(l.length))}
			f, err := play.run(ctx, l.row.Requests(uint64(round+1), l.length))
			if err != nil {
				return nil, err
			}
			runs[i] = append(runs[i], f)
			table.late(play.late)
		}
	}
	if l.rounds < liveLeast {
		table.Note = fmt.Sprintf("too few rounds for an interval, which takes %d", liveLeast)
	}
	for i, t := range l.targets {
		table.add(t.name, runs[i], runs[0])
	}
	return table, nil
}
