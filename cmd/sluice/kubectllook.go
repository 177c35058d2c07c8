package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/kube"
)

// keptDecisions is more than a picker keeps.
const keptDecisions = 1 << 16

func kubectlExplainCommand(o *clusterOptions) *cobra.Command {
	var last int
	var profile, request string
	cmd := &cobra.Command{
		Use:   "explain (CONFIG | POD)",
		Short: "Say why requests went where they went",
		Long: `Explain asks the pickers of an InferenceGatewayConfig, or the one of a pod, for their latest decisions, through the API server, and shows what
each filter and term said about every endpoint, as sluice explain does; sluice explain --help says what its columns mean. An answer's
header x-request-id tells which request it was.`,
		Example: `  kubectl sluice explain gateway --last 3
  kubectl sluice explain gateway --request 6f1b0f6e-2f0b-4a53-9a60-0a5f9f3c2f11
  kubectl sluice explain pod/gateway-picker-7c9d`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("explain takes one name: that of an InferenceGatewayConfig, or of a picker's pod")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.open()
			if err != nil {
				return err
			}
			if last < 1 {
				return fmt.Errorf("cannot explain the last %d decisions: --last is 1 or more", last)
			}
			records, err := decisions(cmd.Context(), c, args[0], request, last, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return explain(cmd.OutOrStdout(), bytes.NewReader(records), last, profile, func(r refusals) error {
				return refused(cmd.Context(), c, args[0], r)
			})
		},
	}
	cmd.Flags().IntVar(&last, "last", 1, "how many of the latest decisions to explain, over all pickers")
	cmd.Flags().StringVar(&request, "request", "", "explain those of the request with this x-request-`ID` alone")
	cmd.Flags().StringVar(&profile, "profile", "", "explain as profile `NAME` would decide, instead of the one that did")
	return cmd
}

// decisions are the latest ones of all pickers, oldest first, a record a line. A picker that can't be asked is said, unless
// none can.
func decisions(ctx context.Context, c *kube.Cluster, what, request string, last int, errOut io.Writer) ([]byte, error) {
	pickers, err := c.Pickers(ctx, what)
	if err != nil {
		return nil, err
	}
	type line struct {
		ID   string `json:"id"`
		Time string `json:"time"`
		text []byte
	}
	ask := last
	if request != "" {
		ask = keptDecisions
	}
	var lines []line
	answered, faults := 0, []error(nil)
	for _, p := range pickers {
		raw, err := c.Ask(ctx, p, "explain", url.Values{"last": {strconv.Itoa(ask)}})
		if err != nil {
			faults = append(faults, err)
			continue
		}
		answered++
		for text := range bytes.Lines(raw) {
			l := line{text: bytes.TrimSpace(text)}
			if json.Unmarshal(text, &l) == nil && (request == "" || l.ID == request) {
				lines = append(lines, l)
			}
		}
	}
	if answered == 0 {
		return nil, errors.Join(faults...)
	}
	for _, err := range faults {
		fmt.Fprintln(errOut, "sluice:", err)
	}
	if request != "" && len(lines) == 0 {
		return nil, notKept(request, answered)
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.Time, b.Time) })
	lines = lines[max(0, len(lines)-last):]
	var out bytes.Buffer
	for _, l := range lines {
		out.Write(l.text)
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}

// notKept says of a request that no picker has it, and how to come by one that they have.
func notKept(request string, pickers int) error {
	return fmt.Errorf("cannot find request %q among the decisions that %s: the latest %d of each, at most %d a second, and none of those that are answered without one, as with 404 for a model that nobody serves: send it again, a few times where there are many others, and ask soon",
		request, map[bool]string{true: "the one picker keeps", false: fmt.Sprintf("%d pickers keep", pickers)}[pickers == 1], ringSize, ringRate)
}

// refused counts the requests that pickers answered without a decision, of those that say so.
func refused(ctx context.Context, c *kube.Cluster, what string, r refusals) error {
	pickers, err := c.Pickers(ctx, what)
	if err != nil {
		return err
	}
	for _, p := range pickers {
		if page, err := c.Ask(ctx, p, "metrics", nil); err == nil { // who can't be asked was said with the decisions
			r.read(page)
		}
	}
	return nil
}

func kubectlTopCommand(o *clusterOptions) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "top [CONFIG | POD]",
		Short: "Show each endpoint, and how busy it is",
		Long: `Top asks the pickers of an InferenceGatewayConfig, or of all in the namespace or the cluster, what they know of each endpoint, by POD and by address: RUNNING and WAITING
requests and KV use as the engine says them, HITS, the share of prompt tokens that it took from its cache in the last two minutes, IN FLIGHT, the
requests sent there by all pickers together, TTFT, the time to first token that is expected there for a typical request, and its STATE, with the reason where it is not
ready. A pool without an endpoint has a line, too.`,
		Example: `  kubectl sluice top
  kubectl sluice top gateway -n inference
  kubectl sluice top -A`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return errors.New("top takes a name, or -A for all there are, not both")
			}
			c, err := o.open()
			if err != nil {
				return err
			}
			gateways := []kube.Config{{Namespace: c.Namespace, Name: strings.Join(args, "")}}
			if len(args) == 0 {
				if gateways, err = c.Configs(cmd.Context(), all); err != nil {
					return err
				}
			}
			switch {
			case len(gateways) == 0 && all:
				return errors.New("no InferenceGatewayConfig is in any namespace")
			case len(gateways) == 0:
				return fmt.Errorf("no InferenceGatewayConfig is in namespace %q: -n names another one, and -A means all", c.Namespace)
			}
			return top(cmd.Context(), c, gateways, all, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "show those of all namespaces")
	return cmd
}

// endpointRow is what is shown of an endpoint.
type endpointRow struct {
	Name     string   `json:"name"`
	Pod      string   `json:"pod"`
	State    string   `json:"state"`
	Why      string   `json:"why"`
	Running  *float64 `json:"running"`
	Waiting  *float64 `json:"waiting"`
	InFlight int      `json:"inFlight"`
	KVUse    *float64 `json:"kvUse"`
	Cached   *float64 `json:"cached"`
	TTFT     *float64 `json:"ttft"`
}

// poolRows are the endpoints of a pool of a gateway.
type poolRows struct {
	Name      string        `json:"name"`
	Model     string        `json:"model"`
	Endpoints []endpointRow `json:"endpoints"`
}

// top prints a table for all the gateways' endpoints, with their namespaces where they are of all.
func top(ctx context.Context, c *kube.Cluster, gateways []kube.Config, all bool, out, errOut io.Writer) error {
	rows := [][]string{{"GATEWAY", "POOL", "POD", "ENDPOINT", "RUNNING", "WAITING", "KV USE", "HITS", "IN FLIGHT", "TTFT", "STATE"}}
	if all {
		rows[0] = append([]string{"NAMESPACE"}, rows[0]...)
	}
	var faults []error
	for _, gateway := range gateways {
		pools, err := endpointsOf(ctx, c.In(gateway.Namespace), gateway.Name, errOut)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if len(pools) == 0 {
			faults = append(faults, fmt.Errorf("no scheduler of %q in namespace %q is at work: kubectl sluice doctor says why", gateway.Name, gateway.Namespace))
		}
		who := []string{gateway.Name}
		if all {
			who = []string{gateway.Namespace, gateway.Name}
		}
		for _, p := range pools {
			rows = append(rows, p.rows(who)...)
		}
	}
	if len(rows) > 1 {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		faults = append(faults, w.Flush())
	}
	return errors.Join(faults...)
}

// rows are the lines for a pool, which begin with its gateway: one for each endpoint, or that it has none.
func (p *poolRows) rows(gateway []string) [][]string {
	if len(p.Endpoints) == 0 {
		return [][]string{append(slices.Clone(gateway), p.Name, "-", "-", "-", "-", "-", "-", "-", "-", "no endpoint")}
	}
	var rows [][]string
	for _, e := range p.Endpoints {
		state := e.State
		if e.Why != "" {
			state += ": " + e.Why
		}
		rows = append(rows, append(slices.Clone(gateway), p.Name, cmp.Or(e.Pod, "-"), e.Name, shown("%.0f", e.Running, 1), shown("%.0f", e.Waiting, 1),
			shown("%.0f %%", e.KVUse, 100), shown("%.0f %%", e.Cached, 100), strconv.Itoa(e.InFlight), shown("%.0f ms", e.TTFT, 1), state))
	}
	return rows
}

// endpointsOf asks all pickers of a gateway. What engines say is that of the first who answers; in flight are those of all.
func endpointsOf(ctx context.Context, c *kube.Cluster, gateway string, errOut io.Writer) ([]poolRows, error) {
	pickers, err := c.Pickers(ctx, gateway)
	if err != nil {
		return nil, err
	}
	var pools []poolRows
	at := make(map[[2]string]*endpointRow)
	answered, faults := 0, []error(nil)
	for _, p := range pickers {
		var state struct {
			Sides []struct {
				Pools []poolRows `json:"pools"`
			} `json:"sides"`
		}
		raw, err := c.Ask(ctx, p, "console/state", nil)
		if err == nil {
			err = json.Unmarshal(raw, &state)
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		answered++
		for _, side := range state.Sides {
			for i := range side.Pools {
				pools = addRows(pools, &side.Pools[i], at)
			}
		}
	}
	if answered == 0 {
		return nil, errors.Join(faults...)
	}
	for _, err := range faults {
		fmt.Fprintln(errOut, "sluice:", err)
	}
	return pools, nil
}

// addRows takes in what one more picker says of a pool.
func addRows(pools []poolRows, p *poolRows, at map[[2]string]*endpointRow) []poolRows {
	fresh := poolRows{Name: p.Name, Model: p.Model}
	for i := range p.Endpoints {
		key := [2]string{p.Name, p.Endpoints[i].Name}
		if there := at[key]; there != nil {
			there.InFlight += p.Endpoints[i].InFlight
			continue
		}
		fresh.Endpoints = append(fresh.Endpoints, p.Endpoints[i])
	}
	known := slices.IndexFunc(pools, func(q poolRows) bool { return q.Name == p.Name })
	if known >= 0 && len(fresh.Endpoints) == 0 {
		return pools
	}
	for i := range fresh.Endpoints {
		at[[2]string{p.Name, fresh.Endpoints[i].Name}] = &fresh.Endpoints[i]
	}
	if known >= 0 && len(pools[known].Endpoints) == 0 { // another picker has none of it
		pools[known] = fresh
		return pools
	}
	return append(pools, fresh)
}

// shown is a figure times something, - where it is not known.
func shown(format string, x *float64, times float64) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf(format, *x*times)
}
