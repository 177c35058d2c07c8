package sim

import (
	"bytes"
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// metricsTSV lists the families of the metrics page of vLLM 0.32 in their order. The names, help texts and buckets are those that its users'
// dashboards and this gateway's scraper meet; they are read off a page that it rendered.
//
//go:embed metrics.tsv
var metricsTSV string

// meter is what a server counts since its engine started. The names are those that metrics.tsv uses.
type meter struct {
	started, busy, openFDs                                          float64
	running, waiting, capacity, deferred, kvUse                     float64
	queried, hit, preemptions, prompt, computed, cached, generated  float64
	stop, length, abort                                             float64
	requestPrompt, requestGenerated, requestMax, paramsN, paramsMax histogram
	requestPreemptions, requestComputed, iteration                  histogram
	ttft, itl, tpot, e2e, queue, inference, prefill, decode         histogram
}

func (m *meter) values() map[string]*float64 {
	return map[string]*float64{"started": &m.started, "busy": &m.busy, "open_fds": &m.openFDs, "running": &m.running, "waiting": &m.waiting,
		"capacity": &m.capacity, "deferred": &m.deferred, "kv_use": &m.kvUse, "queried": &m.queried, "hit": &m.hit, "preemptions": &m.preemptions,
		"prompt": &m.prompt, "computed": &m.computed, "cached": &m.cached, "generated": &m.generated, "stop": &m.stop, "length": &m.length, "abort": &m.abort}
}

func (m *meter) histograms() map[string]*histogram {
	return map[string]*histogram{"request_prompt": &m.requestPrompt, "request_generated": &m.requestGenerated, "request_max": &m.requestMax,
		"params_n": &m.paramsN, "params_max": &m.paramsMax, "request_preemptions": &m.requestPreemptions, "request_computed": &m.requestComputed,
		"iteration": &m.iteration, "ttft": &m.ttft, "itl": &m.itl, "tpot": &m.tpot, "e2e": &m.e2e, "queue": &m.queue, "inference": &m.inference,
		"prefill": &m.prefill, "decode": &m.decode}
}

// histogram counts cumulatively, so that a page needs no sums: few are rendered less often than observed, but an observation ends at the first
// bucket that is too small.
type histogram struct {
	bounds     []float64
	below      []float64
	count, sum float64
}

func (h *histogram) observe(v float64) {
	h.count++
	h.sum += v
	for i := len(h.bounds) - 1; i >= 0 && v <= h.bounds[i]; i-- {
		h.below[i]++
	}
}

// pageSetup are the facts of a server that stand in labels.
type pageSetup struct {
	model       string
	kvBlocks    int
	maxModelLen int
	adapters    int // slots; 0 leaves the family of adapters out
	born        float64
}

// page is a metrics page as text with holes: rendering copies the one and formats the other.
type page struct {
	holes []hole
	tail  string
	// adaptersAt is the hole before which the series of adapters belong, -1 for none.
	adaptersAt int
}

// hole is text and the value that follows it.
type hole struct {
	text  string
	value *float64
}

// pageWriter collects a page.
type pageWriter struct {
	page
	text strings.Builder
	born float64
}

// newPage lays out the page of a meter, and gives the meter's histograms their buckets.
func newPage(m *meter, setup pageSetup) (*page, error) {
	w := &pageWriter{born: setup.born, page: page{adaptersAt: -1}}
	blocks := strconv.Itoa(setup.kvBlocks)
	concurrency := pythonFloat(float64(setup.kvBlocks*BlockTokens) / float64(setup.maxModelLen))
	fill := strings.NewReplacer("MODEL", escapeLabel(setup.model), "KVTOKENS", strconv.Itoa(setup.kvBlocks*BlockTokens), "KVBLOCKS", blocks, "CONCURRENCY", concurrency)
	values, histograms := m.values(), m.histograms()
	for i, line := range strings.Split(strings.TrimSpace(metricsTSV), "\n") {
		f := strings.Split(line, "\t")
		if i == 0 {
			continue // the header
		}
		if len(f) != 4 {
			return nil, fmt.Errorf("cannot read metrics.tsv, line %d: got %d fields, want 4", i+1, len(f))
		}
		var err error
		switch {
		case f[2] == "adapters":
			if setup.adapters > 0 {
				w.header(f[0], f[1], f[3])
				w.adaptersAt = len(w.holes)
			}
		case f[1] == "histogram":
			err = w.histogram(f[0], f[2], f[3], `model_name="`+escapeLabel(setup.model)+`"`, histograms, setup.maxModelLen)
		default:
			err = w.scalars(f[0], f[1], f[2], f[3], fill, values)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read metrics.tsv, line %d: %w", i+1, err)
		}
	}
	w.tail = w.text.String()
	return &w.page, nil
}

func (w *pageWriter) header(name, kind, help string) {
	w.text.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
}

// sample adds a line with a hole.
func (w *pageWriter) sample(name, labels string, value *float64) {
	w.text.WriteString(name)
	if labels != "" {
		w.text.WriteString("{" + labels + "}")
	}
	w.text.WriteByte(' ')
	w.holes = append(w.holes, hole{w.text.String(), value})
	w.text.Reset()
	w.text.WriteByte('\n')
}

func (w *pageWriter) constant(name, labels string, value float64) {
	w.text.WriteString(name)
	if labels != "" {
		w.text.WriteString("{" + labels + "}")
	}
	w.text.WriteString(" " + pythonFloat(value) + "\n")
}

// scalars adds a family of gauges or counters.
func (w *pageWriter) scalars(name, kind, series, help string, fill *strings.Replacer, values map[string]*float64) error {
	w.header(name, kind, help)
	all := strings.Split(series, " | ")
	for _, s := range all {
		labels, key, _ := strings.Cut(s, "=>")
		labels = fill.Replace(labels)
		if number, err := strconv.ParseFloat(key, 64); err == nil {
			w.constant(name, labels, number)
			continue
		}
		v, ok := values[key]
		if !ok {
			return fmt.Errorf("value %q of %s is not known", key, name)
		}
		w.sample(name, labels, v)
	}
	if kind != "counter" || !strings.HasPrefix(name, "vllm:") {
		return nil
	}
	created := strings.TrimSuffix(name, "_total") + "_created"
	w.header(created, "gauge", help)
	for _, s := range all {
		labels, _, _ := strings.Cut(s, "=>")
		w.constant(created, fill.Replace(labels), w.born)
	}
	return nil
}

// histogram adds a family of one histogram.
func (w *pageWriter) histogram(name, series, help, model string, known map[string]*histogram, context int) error {
	f := strings.Fields(series)
	h, ok := known[f[0]]
	if !ok {
		return fmt.Errorf("histogram %q of %s is not known", f[0], name)
	}
	h.bounds = h.bounds[:0]
	for _, bound := range f[1:] {
		if bound == "to-context" {
			h.bounds = oneTwoFive(context)
			break
		}
		x, err := strconv.ParseFloat(bound, 64)
		if err != nil {
			return fmt.Errorf("bounds of %s: %w", name, err)
		}
		h.bounds = append(h.bounds, x)
	}
	h.below = make([]float64, len(h.bounds))
	w.header(name, "histogram", help)
	for i, bound := range h.bounds {
		w.sample(name+"_bucket", `engine="0",le="`+pythonFloat(bound)+`",`+model, &h.below[i])
	}
	labels := `engine="0",` + model
	w.sample(name+"_bucket", `engine="0",le="+Inf",`+model, &h.count)
	w.sample(name+"_count", labels, &h.count)
	w.sample(name+"_sum", labels, &h.sum)
	w.header(name+"_created", "gauge", help)
	w.constant(name+"_created", labels, w.born)
	return nil
}

// oneTwoFive are the bounds 1, 2, 5, 10 … up to the longest context.
func oneTwoFive(most int) []float64 {
	var out []float64
	for scale := 1; ; scale *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*scale > most {
				return out
			}
			out = append(out, float64(m*scale))
		}
	}
}

// appendTo renders the page.
func (p *page) appendTo(dst []byte, adapters *adapterSeries) []byte {
	for i := range p.holes {
		h := &p.holes[i]
		if i == p.adaptersAt {
			// The text before the hole ends the family before, and begins the next one.
			dst = adapters.appendTo(dst, h.text)
		} else {
			dst = append(dst, h.text...)
		}
		dst = appendPythonFloat(dst, *h.value)
	}
	if p.adaptersAt == len(p.holes) {
		return adapters.appendTo(dst, p.tail)
	}
	return append(dst, p.tail...)
}

// adapterSeries are the label sets of the adapters' family: each stays, with the time it was last true, until there are too many.
type adapterSeries struct {
	most   int
	at     map[string]int
	series []adapterSet
	key    []byte
}

type adapterSet struct {
	key    string
	labels string
	when   float64
}

// note says which adapters run and wait, each in the order they came.
func (a *adapterSeries) note(e *Engine, when float64) {
	a.key = a.key[:0]
	for s := e.running.head; s != nil; s = s.next {
		a.key = appendName(a.key, 0, s.Adapter)
	}
	a.key = append(a.key, 0)
	from := len(a.key)
	for s := e.waiting.head; s != nil; s = s.next {
		a.key = appendName(a.key, from, s.Adapter)
	}
	i, ok := a.at[string(a.key)]
	if !ok && len(a.series) == mostSets {
		i, ok = a.oldest(), true
		delete(a.at, a.series[i].key)
		a.at[string(a.key)] = i
		a.series[i] = newAdapterSet(a.most, string(a.key))
	}
	if !ok {
		i = len(a.series)
		a.at[string(a.key)] = i
		a.series = append(a.series, newAdapterSet(a.most, string(a.key)))
	}
	a.series[i].when = when
}

// mostSets bounds the label sets: vLLM keeps all it ever had, which a page of many adapters does not stand for hours.
const mostSets = 256

func newAdapterSet(most int, key string) adapterSet {
	running, waiting, _ := strings.Cut(key, "\x00")
	return adapterSet{key: key, labels: `{max_lora="` + strconv.Itoa(most) + `",running_lora_adapters="` + escapeLabel(running) +
		`",waiting_lora_adapters="` + escapeLabel(waiting) + `"} `}
}

// oldest is the set that was true the longest ago.
func (a *adapterSeries) oldest() int {
	oldest := 0
	for i := range a.series {
		if a.series[i].when < a.series[oldest].when {
			oldest = i
		}
	}
	return oldest
}

// appendName adds a name to the comma-separated list that begins at from, unless it is there.
func appendName(list []byte, from int, name string) []byte {
	if name == "" {
		return list
	}
	for rest := list[from:]; len(rest) > 0; {
		end := 0
		for end < len(rest) && rest[end] != ',' {
			end++
		}
		if string(rest[:end]) == name {
			return list
		}
		rest = rest[min(end+1, len(rest)):]
	}
	if len(list) > from {
		list = append(list, ',')
	}
	return append(list, name...)
}

// appendTo puts the series into the text after the family's TYPE line.
func (a *adapterSeries) appendTo(dst []byte, text string) []byte {
	const family = "# TYPE vllm:lora_requests_info gauge\n"
	cut := strings.Index(text, family) + len(family)
	dst = append(dst, text[:cut]...)
	for _, s := range a.series {
		dst = append(append(dst, "vllm:lora_requests_info"...), s.labels...)
		dst = append(appendPythonFloat(dst, s.when), '\n')
	}
	return append(dst, text[cut:]...)
}

func escapeLabel(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}

// pythonFloat writes a number as Python's client for Prometheus does: with a decimal point always, and from seven digits before it on with an exponent.
func pythonFloat(v float64) string { return string(appendPythonFloat(nil, v)) }

func appendPythonFloat(dst []byte, v float64) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(dst, "+Inf"...)
	case math.IsInf(v, -1):
		return append(dst, "-Inf"...)
	case math.IsNaN(v):
		return append(dst, "NaN"...)
	}
	size := math.Abs(v)
	if size != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.AppendFloat(dst, v, 'e', -1, 64)
	}
	if v == math.Trunc(v) && v >= 0 && v < 1e6 { // most of a page
		return append(strconv.AppendInt(dst, int64(v), 10), ".0"...)
	}
	return appendDecimal(dst, v)
}

// appendDecimal writes a number that has neither very many nor very few digits.
func appendDecimal(dst []byte, v float64) []byte {
	from := len(dst)
	dst = strconv.AppendFloat(dst, v, 'f', -1, 64)
	digits := bytes.IndexByte(dst[from:], '.')
	if digits < 0 {
		digits = len(dst) - from
		dst = append(dst, ".0"...)
	}
	if v < 0 || digits <= 6 {
		return dst
	}
	copy(dst[from+2:from+digits+1], dst[from+1:from+digits])
	dst[from+1] = '.'
	dst = bytes.TrimRight(dst, "0")
	dst = bytes.TrimSuffix(dst, []byte("."))
	return strconv.AppendInt(append(dst, "e+0"...), int64(digits-1), 10)
}

// wall is a time as the page writes it.
func wall(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
