package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/route"
)

func explainCommand() *cobra.Command {
	var admin, profile string
	var last int
	cmd := &cobra.Command{
		Use:   "explain [FILE]",
		Short: "Say why requests went where they went",
		Long: `Explain shows, for recorded decisions, what each filter and term said about every endpoint, in columns and in words.
Without FILE it asks a running gateway for its latest decisions; with FILE it reads what serve --record wrote ("-" is the standard
input).

The first table is what was known of each endpoint: from its metrics waiting and running requests, KV use, KV tokens (the cache's size), read
ago (how old that is); counted by the gateway requests in flight, of these prefilling (without a first token), backlog (their prompt tokens not cached
there), work (what computing those takes at a factor of 1, in ms), held (tokens that requests in flight add to the cache), context (their tokens halfway
through their answers), match (units of 256 bytes of this prompt that it holds) and in its cache (tokens of it that it should find: exact, at least, or
guessed). The second is what filters left out and what each term costs in ms, or scores; docs/routing.md says how. A kind's line has the shape of its
steps, in ms, and after × the factor that was learned for prompts and for decoding.`,
		Example: `  sluice explain --last 3                     # the gateway on this machine
  sluice explain --admin 127.0.0.1:9000
  sluice explain decisions.jsonl --last 1     # what serve --record wrote
  sluice explain decisions.jsonl --profile weights`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 1 {
				return fmt.Errorf("cannot explain the last %d decisions: --last is 1 or more", last)
			}
			if len(args) == 1 {
				in, err := openRecords(cmd, args[0])
				if err != nil {
					return err
				}
				defer in.Close()
				return explain(cmd.OutOrStdout(), in, last, profile, nil)
			}
			in, err := askAdmin(cmd.Context(), admin, fmt.Sprintf("explain?last=%d", last))
			if err != nil {
				return err
			}
			defer in.Close()
			return explain(cmd.OutOrStdout(), in, last, profile, func(r refusals) error {
				page, err := askAdmin(cmd.Context(), admin, "metrics")
				if err != nil {
					return err
				}
				defer page.Close()
				text, err := io.ReadAll(page)
				r.read(text)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&admin, "admin", "127.0.0.1:8081", "`ADDR` of a running gateway's metrics listener")
	cmd.Flags().IntVar(&last, "last", 1, "how many of the latest decisions to explain")
	cmd.Flags().StringVar(&profile, "profile", "", "explain as profile `NAME` would decide, instead of the one that did")
	return cmd
}

// askAdmin asks a gateway's metrics listener.
func askAdmin(ctx context.Context, admin, path string) (io.ReadCloser, error) {
	if !strings.Contains(admin, "://") {
		admin = "http://" + admin
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the gateway: %w", err)
	}
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the gateway; is `sluice serve` running, and is --admin the address it printed for metrics? %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("cannot ask the gateway: %s answered %s; --admin is the address that serve printed for metrics", admin, resp.Status)
	}
	return resp.Body, nil
}

func openRecords(cmd *cobra.Command, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read records: %w", err)
	}
	return f, nil
}

// refusals are how many requests were answered before anything was decided for them, by status code.
type refusals map[string]int

// refusedLine is a metric of requests for which no pool was found, in the order of labels that pages have.
var refusedLine = regexp.MustCompile(`(?m)^sluice_requests_total\{code="([45]\d\d)",operation="[^"]*",pool=""\} (\S+)$`)

// read adds those that a metrics page counts, since its process began.
func (r refusals) read(page []byte) {
	for _, m := range refusedLine.FindAllSubmatch(page, -1) {
		if n, err := strconv.ParseFloat(string(m[2]), 64); err == nil {
			r[string(m[1])] += int(n)
		}
	}
}

// String says in a sentence what there is to say where there is no decision.
func (r refusals) String() string {
	all, by := 0, []string(nil)
	for _, code := range slices.Sorted(maps.Keys(r)) {
		text := fmt.Sprintf("%d with %s", r[code], code)
		if code == "404" {
			text += " (nobody serves their model, or their path)"
		}
		all, by = all+r[code], append(by, text)
	}
	switch all {
	case 0:
		return "No decision has been recorded yet: send a request first."
	case 1:
		return "No decision has been recorded yet: 1 request was answered without one, " + by[0] + "."
	}
	return fmt.Sprintf("No decision has been recorded yet: %d requests were answered without one, %s.", all, strings.Join(by, ", "))
}

// explain prints the last records of in, oldest first. Where there is none it says how many requests were answered without, as
// count counts them; nil where nobody can.
func explain(out io.Writer, in io.Reader, last int, profile string, count func(refusals) error) error {
	var kept []*route.Record
	damaged, first := 0, error(nil)
	err := route.EachRecord(in, func(r *route.Record) error {
		if kept = append(kept, r); len(kept) > last {
			kept = slices.Delete(kept, 0, 1)
		}
		return nil
	}, func(line int, bad error) {
		if damaged++; first == nil {
			first = fmt.Errorf("line %d: %w", line, bad)
		}
	})
	if err != nil {
		return err
	}
	if damaged > 0 {
		fmt.Fprintf(out, "%d lines could not be used; the first is %v\n\n", damaged, first)
	}
	if len(kept) == 0 && damaged > 0 {
		return errors.New("no line is a record that serve --record has written")
	}
	if len(kept) == 0 {
		none := make(refusals)
		if count != nil {
			if err := count(none); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintln(out, none)
		return err
	}
	for _, r := range kept {
		if err := explainOne(out, r, profile); err != nil {
			return err
		}
	}
	return nil
}

// explainOne prints one record, as its own profile decides or the one that is named.
func explainOne(out io.Writer, r *route.Record, profile string) error {
	p, err := r.OwnProfile()
	if profile != "" {
		p, err = route.Named(profile, r.Weights)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "request %s at %s, pool %s", r.ID, r.Time, r.Pool)
	if r.Objective != "" {
		fmt.Fprintf(out, ", objective %s, priority %d", r.Objective, r.Priority)
	}
	fmt.Fprintln(out)
	if r.View.Snapshot.Len() == 0 {
		_, err := fmt.Fprint(out, "The pool had no endpoint, so that there was nothing to choose from.\n\n")
		return err
	}
	e := p.Explain(&r.View)
	if err := e.WriteText(out, &r.View); err != nil {
		return err
	}
	fmt.Fprintln(out)
	return nil
}

func replayCommand() *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Decide recorded requests again, under another profile",
		Long: `Replay decides every recorded request again and says how many would go elsewhere. Without --profile each is decided as it was
then: a difference means that the rule itself has changed.`,
		Example: `  sluice serve -f gateway.yaml --record decisions.jsonl
  sluice replay decisions.jsonl --profile weights
  sluice replay decisions.jsonl`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("replay takes one FILE, which serve --record has written (- for the standard input)")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var p *route.Profile
			if profile != "" {
				var err error
				if p, err = route.Named(profile, nil); err != nil {
					return err
				}
			}
			in, err := openRecords(cmd, args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			s, err := route.Replay(in, p)
			if err != nil {
				return err
			}
			if err := s.WriteText(cmd.OutOrStdout()); err != nil {
				return err
			}
			if s.Records == 0 && s.Unreadable > 0 {
				return fmt.Errorf("no line of %s is a record that serve --record has written", args[0])
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&profile, "profile", "", "decide by profile `NAME`: "+strings.Join(route.ProfileNames(), ", "))
	return cmd
}
