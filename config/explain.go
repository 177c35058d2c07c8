package config

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/route"
)

// Explain writes for people what goes where and why: every scheduler with its endpoints and its rule, what becomes of
// the other requests, and what of the documents has no effect. The layout is not for programs and may change.
func (c *Config) Explain(w io.Writer) error {
	var p page
	p.line("%s", c.headline())
	p.verdict(c)
	clashing := c.checkEvents(func(string, string) {}) // has been said
	rewrites, objectives := c.rewriteLines(), c.objectiveLines()
	for i := range c.Pools {
		p.pool(&c.Pools[i], rewrites[c.Pools[i].Scheduler], objectives[c.Pools[i].Scheduler], clashing)
	}
	p.requests(c)
	p.notices("Not honoured here", c.NotHonoured)
	p.notices("Worth a look", c.Warnings)
	if _, err := io.WriteString(w, p.String()); err != nil {
		return fmt.Errorf("cannot write the explanation of %q: %w", c.Source, err)
	}
	return nil
}

func (c *Config) headline() string {
	endpoints := 0
	for _, p := range c.Pools {
		endpoints += len(p.Endpoints)
	}
	name := ""
	if c.Name != "" {
		name = fmt.Sprintf("%q ", c.Name)
	}
	return fmt.Sprintf("Gateway %sfrom %s: %s, %s", name, c.Source, plural(len(c.Pools), "model"), plural(endpoints, "endpoint"))
}

// verdict says whether it can be served, and where it can't, who could.
func (p *page) verdict(c *Config) {
	n := c.fatal()
	if n == 0 {
		return
	}
	p.line("It cannot be served as it stands, because of %s that would not be kept: see below.", plural(n, "setting"))
	switch behind := c.BehindEnvoy(true); {
	case c.Envoy || behind.fatal() > 0:
	case c.TLS:
		p.line("Behind Envoy it can, with a certificate: `sluice serve --data-plane envoy --tls-cert FILE --tls-key FILE`; look with `sluice check --data-plane envoy --tls-cert FILE`.")
	default:
		p.line("Behind Envoy it can: `sluice serve --data-plane envoy`; look with `sluice check --data-plane envoy`.")
	}
}

func (c *Config) fatal() int {
	n := 0
	for _, x := range c.NotHonoured {
		if x.Fatal {
			n++
		}
	}
	return n
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// page is text under way.
type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) {
	p.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " "))
	p.WriteByte('\n')
}

func (p *page) title(format string, args ...any) {
	p.WriteByte('\n')
	p.line(format, args...)
}

// item writes lines under one key.
func (p *page) item(key string, lines ...string) {
	for _, l := range lines {
		p.line("  %-12s%s", key, l)
		key = ""
	}
}

func (p *page) pool(x *Pool, rewrites, objectives []string, clashing map[string]bool) {
	p.title("Scheduler %s", x.Scheduler)
	p.item("model", printable(x.Model))
	if len(x.Adapters) > 0 {
		names := make([]string, len(x.Adapters))
		for i, a := range x.Adapters {
			names[i] = printable(a)
		}
		p.item("adapters", wrap(names, 76)...)
	}
	p.item("rewrites", rewrites...)
	p.item("objectives", objectives...)
	if x.Selector != "" {
		p.item("selector", selectorSentence(x.Selector))
	}
	p.item("endpoints", endpointLines(x.Endpoints)...)
	p.item("routing", routing(x)...)
	p.item("prefixes", prefixes(x, clashing)...)
	if x.Session != nil {
		p.item("sessions", sessionSentence(x.Session))
	}
	p.item("time limit", timeLimit(x))
	if x.AppProtocol == H2C {
		p.item("protocol", "HTTP/2 without TLS")
	}
	p.item("engine", engineSentence(x))
}

// printable quotes a name that would move the cursor.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

func selectorSentence(s string) string {
	if s == "{}" {
		return "{}, which selects every endpoint"
	}
	return s
}

func endpointLines(list []Endpoint) []string {
	if len(list) == 0 {
		return []string{"none: requests are answered 503"}
	}
	rows := make([][]string, len(list))
	for i, e := range list {
		rows[i] = []string{e.HostPort(), state(e), e.Engine, labelText(e.Labels), transport(e)}
	}
	return columns(rows)
}

func state(e Endpoint) string {
	if e.Drain {
		return "draining"
	}
	return "in use"
}

// transport says how an endpoint is reached, where that isn't plain.
func transport(e Endpoint) string {
	var words []string
	if t := e.TLS; t != nil {
		word := "https"
		switch {
		case t.InsecureSkipVerify:
			word += " (unverified)"
		case t.CAFile != "":
			word += " (authorities in " + t.CAFile + ")"
		}
		if t.ServerName != "" {
			word += " as " + t.ServerName
		}
		words = append(words, word)
	}
	switch {
	case e.APIKey.Env != "":
		words = append(words, "key from $"+e.APIKey.Env)
	case e.APIKey.File != "":
		words = append(words, "key from "+e.APIKey.File)
	}
	if e.MetricsPath != "" || e.MetricsPort != 0 {
		port := e.MetricsPort
		if port == 0 {
			port = e.Port
		}
		words = append(words, fmt.Sprintf("metrics at :%d%s", port, e.MetricsPath))
	}
	if e.Ranks > 0 {
		words = append(words, fmt.Sprintf("ranks %d to %d", e.FirstRank, e.FirstRank+e.Ranks-1))
	}
	if k := e.KVEvents; k.Port != 0 {
		word := fmt.Sprintf("KV events at :%d", k.Port)
		if k.ReplayPort != 0 {
			word += fmt.Sprintf(", again at :%d", k.ReplayPort)
		}
		if e.Ranks > 0 {
			word += ", each plus the rank"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func labelText(m map[string]string) string {
	var words []string
	for k, v := range sorted(m) {
		words = append(words, k+"="+v)
	}
	return strings.Join(words, ",")
}

func routing(x *Pool) []string {
	switch {
	case x.ConfigMap != "":
		return []string{"as ConfigMap " + x.ConfigMap + " says, which cannot be read here"}
	case x.Weights == nil:
		return []string{"by latency: the least expected cost in milliseconds, because no weights are set"}
	}
	var words []string
	for _, name := range route.ScorerNames() {
		if w, given := x.Weights[name]; given {
			words = append(words, name+" "+strconv.FormatFloat(w, 'g', -1, 64))
		}
	}
	return []string{"by weights: " + strings.Join(words, ", "), "the endpoint with the highest weighted sum of scores gets the request"}
}

func timeLimit(x *Pool) string {
	switch {
	case x.RouteTimeout == nil:
		return "none is asked for"
	case *x.RouteTimeout == 0:
		return "lifted, because routeTimeout is 0"
	}
	return fmt.Sprintf("%v for a whole request", *x.RouteTimeout)
}

func engineSentence(x *Pool) string {
	asked := slices.ContainsFunc(x.Endpoints, func(e Endpoint) bool { return e.Engine == "" })
	switch {
	case len(x.Endpoints) > 0 && !asked:
		return "as listed"
	case x.EngineType != "":
		return "found by asking each endpoint, else " + x.EngineType
	}
	return "found by asking each endpoint"
}

func (p *page) requests(c *Config) {
	p.title("Requests")
	switch {
	case !c.SelectModel && len(c.Pools) == 1 && len(c.Rewrites) > 0:
		p.item("model", fmt.Sprintf("read to be rewritten only: every request goes to %s, whatever model it names", c.Pools[0].Scheduler))
	case !c.SelectModel && len(c.Pools) == 1:
		p.item("model", fmt.Sprintf("not read: every request goes to %s, whatever model it names", c.Pools[0].Scheduler))
	default:
		how := "the body's model"
		if len(c.Rewrites) > 0 {
			how += ", as rewritten,"
		}
		p.item("model", how+" chooses the scheduler, by its model or one of its adapters")
		p.item("others", c.others())
	}
	if j := c.JWT; j != nil && c.Envoy {
		p.item("tokens", "checked by Envoy: of "+j.Issuer+", by the keys at "+j.JWKSURI)
	}
	p.item("body", fmt.Sprintf("at most %s, longer ones are answered 413", bytesText(c.MaxBodyBytes)))
}

// others says what becomes of a model that no scheduler has.
func (c *Config) others() string {
	if c.Default != nil && len(c.Default.Endpoints) > 0 {
		return "to " + c.Default.Endpoints[0].HostPort() + ", the default backend"
	}
	return "404: no matching model: set the model in the request body or the x-gateway-model-name header"
}

func bytesText(n int64) string {
	const mib = 1 << 20
	if n%mib == 0 {
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return fmt.Sprintf("%d bytes", n)
}

// notices writes them by document, and below each its reason: reasons are sentences, and a column of sentences is no
// column. One reason serves all that share it.
func (p *page) notices(title string, list []Notice) {
	if len(list) == 0 {
		return
	}
	p.title("%s", title)
	for i, n := range list {
		if n.Object != "" && (i == 0 || list[i-1].Object != n.Object) {
			p.line("  in %s", n.Object)
		}
		head := strings.TrimSpace(n.Path + "  " + n.Value)
		if n.Fatal {
			head += "  (stops serving)"
		}
		p.line("    %s", head)
		if i+1 < len(list) && list[i+1].Object == n.Object && list[i+1].Why == n.Why {
			continue
		}
		for _, l := range wrap(strings.SplitAfter(n.Why, " "), 86) {
			p.line("        %s", l)
		}
	}
}

// columns pads cells so that they stand below each other, and drops empty columns.
func columns(rows [][]string) []string {
	widths := map[int]int{}
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := make([]string, len(rows))
	for n, r := range rows {
		var b strings.Builder
		for _, i := range slices.Sorted(maps.Keys(widths)) {
			if widths[i] == 0 {
				continue
			}
			b.WriteString(r[i])
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(r[i])+2))
		}
		lines[n] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// wrap fills lines with words. Words that do not end in a space are a list, and get commas.
func wrap(words []string, width int) []string {
	var lines []string
	line := ""
	for i, w := range words {
		if i < len(words)-1 && !strings.HasSuffix(w, " ") {
			w += ", "
		}
		if line != "" && utf8.RuneCountInString(line)+utf8.RuneCountInString(strings.TrimRight(w, " ")) > width {
			lines = append(lines, strings.TrimRight(line, " "))
			line = ""
		}
		line += w
	}
	return append(lines, strings.TrimRight(line, " "))
}
