package sim

import (
	"strconv"
	"time"
)

// httpMeter counts what the HTTP layer of vLLM counts of its requests, by path as it stands in the table of paths.
type httpMeter struct {
	requests  []httpCount
	sizes     []httpCount
	durations []httpCount
	fine      histogram
}

// httpCount is one series of several families: those that its family does not have as labels are empty.
type httpCount struct {
	handler, method, status string
	count, sent, received   float64
	slow                    [3]float64 // requests at most .1, .5 and 1 s long
	seconds                 float64
	born                    float64
}

func newHTTPMeter() httpMeter {
	m := httpMeter{fine: histogram{bounds: []float64{.01, .025, .05, .075, .1, .25, .5, .75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60}}}
	m.fine.below = make([]float64, len(m.fine.bounds))
	return m
}

// note counts a request that has ended. The sizes are those of the headers, 0 where they say none.
func (m *httpMeter) note(handler, method string, status int, received, sent int64, took time.Duration, now float64) {
	c := httpSeries(&m.requests, handler, method, strconv.Itoa(status/100)+"xx", now)
	c.count++
	c = httpSeries(&m.sizes, handler, "", "", now)
	c.count++
	c.received += float64(max(received, 0))
	c.sent += float64(max(sent, 0))
	c = httpSeries(&m.durations, handler, method, "", now)
	c.count++
	c.seconds += took.Seconds()
	for i, bound := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, time.Second} {
		if took <= bound {
			c.slow[i]++
		}
	}
	m.fine.observe(took.Seconds())
}

// httpSeries finds a series or begins it.
func httpSeries(all *[]httpCount, handler, method, status string, now float64) *httpCount {
	for i := range *all {
		if c := &(*all)[i]; c.handler == handler && c.method == method && c.status == status {
			return c
		}
	}
	*all = append(*all, httpCount{handler: handler, method: method, status: status, born: now})
	return &(*all)[len(*all)-1]
}

// appendTo renders the families that stand at the end of the page.
func (m *httpMeter) appendTo(dst []byte, born float64) []byte {
	const total = "Total number of requests by method, status and handler."
	dst = appendHeader(dst, "http_requests_total", "counter", total)
	for i := range m.requests {
		dst = m.requests[i].line(dst, "http_requests_total", "", m.requests[i].count)
	}
	dst = appendHeader(dst, "http_requests_created", "gauge", total)
	for i := range m.requests {
		dst = m.requests[i].line(dst, "http_requests_created", "", m.requests[i].born)
	}
	for _, direction := range []string{"request", "response"} {
		way := "incoming requests"
		if direction == "response" {
			way = "outgoing responses"
		}
		help := "Content length of " + way + " by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. "
		name := "http_" + direction + "_size_bytes"
		dst = appendHeader(dst, name, "summary", help)
		for i := range m.sizes {
			c := &m.sizes[i]
			sum := c.received
			if direction == "response" {
				sum = c.sent
			}
			dst = c.line(dst, name+"_count", "", c.count)
			dst = c.line(dst, name+"_sum", "", sum)
		}
		dst = appendHeader(dst, name+"_created", "gauge", help)
		for i := range m.sizes {
			dst = m.sizes[i].line(dst, name+"_created", "", m.sizes[i].born)
		}
	}
	return m.appendDurations(dst, born)
}

func (m *httpMeter) appendDurations(dst []byte, born float64) []byte {
	const fine = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
	const name = "http_request_duration_highr_seconds"
	dst = appendHeader(dst, name, "histogram", fine)
	for i, bound := range m.fine.bounds {
		dst = append(append(append(dst, name+`_bucket{le="`...), pythonFloat(bound)...), `"} `...)
		dst = append(appendPythonFloat(dst, m.fine.below[i]), '\n')
	}
	dst = append(appendPythonFloat(append(dst, name+`_bucket{le="+Inf"} `...), m.fine.count), '\n')
	dst = append(appendPythonFloat(append(dst, name+"_count "...), m.fine.count), '\n')
	dst = append(appendPythonFloat(append(dst, name+"_sum "...), m.fine.sum), '\n')
	dst = appendHeader(dst, name+"_created", "gauge", fine)
	dst = append(appendPythonFloat(append(dst, name+"_created "...), born), '\n')

	const coarse = "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "
	const byHandler = "http_request_duration_seconds"
	dst = appendHeader(dst, byHandler, "histogram", coarse)
	for i := range m.durations {
		c := &m.durations[i]
		for k, le := range []string{"0.1", "0.5", "1.0"} {
			dst = c.line(dst, byHandler+"_bucket", le, c.slow[k])
		}
		dst = c.line(dst, byHandler+"_bucket", "+Inf", c.count)
		dst = c.line(dst, byHandler+"_count", "", c.count)
		dst = c.line(dst, byHandler+"_sum", "", c.seconds)
	}
	dst = appendHeader(dst, byHandler+"_created", "gauge", coarse)
	for i := range m.durations {
		dst = m.durations[i].line(dst, byHandler+"_created", "", m.durations[i].born)
	}
	return dst
}

func appendHeader(dst []byte, name, kind, help string) []byte {
	dst = append(append(append(append(dst, "# HELP "...), name...), ' '), help...)
	return append(append(append(append(append(dst, "\n# TYPE "...), name...), ' '), kind...), '\n')
}

// line adds a sample with the labels that the series has, and le if it is not empty.
func (c *httpCount) line(dst []byte, name, le string, value float64) []byte {
	dst = append(append(append(append(dst, name...), `{handler="`...), c.handler...), '"')
	if le != "" {
		dst = append(append(append(dst, `,le="`...), le...), '"')
	}
	if c.method != "" {
		dst = append(append(append(dst, `,method="`...), c.method...), '"')
	}
	if c.status != "" {
		dst = append(append(append(dst, `,status="`...), c.status...), '"')
	}
	return append(appendPythonFloat(append(dst, "} "...), value), '\n')
}
