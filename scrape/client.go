package scrape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// client speaks HTTP with one endpoint over connections of its own, which it keeps. It follows no redirect.
type client struct {
	endpoint  fleet.Endpoint
	transport *http.Transport
	// dialing is how many connections are being opened: a time-out while one is says that nothing answered, and else
	// that the answer is late.
	dialing atomic.Int32
	// spoke says that there was an answer, so that the way to speak is right.
	spoke atomic.Bool
	// http1 says that what last came, where HTTP/2 is spoken without TLS, was an answer of HTTP/1.
	http1 atomic.Bool
}

// newClient makes a client whose requests take timeout at most. Connecting may take longer, so that at a time-out it is
// still seen to be under way; the connection then serves the next request.
func newClient(e fleet.Endpoint, dial func(ctx context.Context, network, address string) (net.Conn, error), timeout time.Duration) *client {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 2 * timeout}).DialContext
	}
	c := &client{endpoint: e}
	var protocols http.Protocols
	protocols.SetHTTP1(!e.H2C || e.TLS != nil)
	protocols.SetUnencryptedHTTP2(e.H2C && e.TLS == nil)
	c.transport = &http.Transport{
		Protocols:           &protocols,
		DisableCompression:  true, // a page is read often and never far away: packing it costs both sides more than sending it
		MaxIdleConnsPerHost: 2,    // one for pages, one for asking
		MaxConnsPerHost:     4,
		IdleConnTimeout:     time.Minute,
		TLSHandshakeTimeout: timeout,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c.dialing.Add(1)
			defer c.dialing.Add(-1)
			conn, err := dial(ctx, network, address)
			if err == nil && protocols.UnencryptedHTTP2() {
				conn = &firstRead{Conn: conn, http1: &c.http1}
			}
			return conn, err
		},
	}
	if e.TLS != nil {
		c.transport.TLSClientConfig = e.TLS.Clone() // the transport writes its protocols there
	}
	return c
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// metricsAddress is where metrics are served, and whether that is the serving port.
func (c *client) metricsAddress() (address string, same bool) {
	e := &c.endpoint
	host, port, err := net.SplitHostPort(e.Address())
	if err != nil || e.MetricsPort == 0 || strconv.Itoa(e.MetricsPort) == port {
		return e.Address(), true
	}
	return net.JoinHostPort(host, strconv.Itoa(e.MetricsPort)), false
}

// metricsPaths are where metrics may be, most likely first. A configured path is the only one.
func (c *client) metricsPaths() []string {
	if c.endpoint.MetricsPath != "" {
		return []string{c.endpoint.MetricsPath}
	}
	paths := []string{"/metrics"}
	for i := range dialects {
		d := &dialects[i]
		switch {
		case d.path == "":
		case d.engine == c.endpoint.Engine:
			paths = slices.Insert(paths, 0, d.path)
		default:
			paths = append(paths, d.path)
		}
	}
	return paths
}

// request prepares a GET; it may be sent any number of times.
func (c *client) request(address, path, accept string) (*http.Request, error) {
	e := &c.endpoint
	u, err := url.Parse(path)
	if err != nil || u.Host != "" || !strings.HasPrefix(u.Path, "/") {
		return nil, fmt.Errorf("cannot ask endpoint %q for %q: a path must begin with one /", e.Name, path)
	}
	u.Scheme, u.Host = "http", address
	if e.TLS != nil {
		u.Scheme = "https"
	}
	r := &http.Request{Method: http.MethodGet, URL: u, Host: e.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Accept": {accept}, "User-Agent": {"sluice"}}}
	if r.Host == "" {
		r.Host = e.Address()
	}
	if e.APIKey != "" {
		r.Header.Set("Authorization", "Bearer "+e.APIKey)
	}
	return r, nil
}

// answer is what came back: the body only of a 200, and of a redirect where it points.
type answer struct {
	status   int
	location string
	body     []byte
}

var errTooLarge = errors.New("the answer is too large")

// get sends a prepared request and reads at most limit bytes of the answer into buf, which may grow.
func (c *client) get(ctx context.Context, r *http.Request, limit int, buf []byte) (answer, error) {
	resp, err := c.transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return answer{body: buf[:0]}, err
	}
	defer resp.Body.Close()
	c.spoke.Store(true)
	c.http1.Store(false)
	a := answer{status: resp.StatusCode, location: resp.Header.Get("Location"), body: buf[:0]}
	if a.status != http.StatusOK {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // enough of an error's body to keep the connection
		return a, nil
	}
	if resp.ContentLength > int64(limit) {
		return a, fmt.Errorf("%w: %d bytes, %d are read", errTooLarge, resp.ContentLength, limit)
	}
	a.body = slices.Grow(a.body, max(int(resp.ContentLength)+1, 512))
	for {
		n, err := resp.Body.Read(a.body[len(a.body):cap(a.body)])
		a.body = a.body[:len(a.body)+n]
		switch {
		case len(a.body) > limit:
			return a, fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
		case err == io.EOF:
			return a, nil
		case err != nil:
			return a, err
		case len(a.body) == cap(a.body):
			a.body = slices.Grow(a.body, len(a.body))
		}
	}
}

// reach is how far a failed request got.
type reach uint8

const (
	refused reach = iota // nobody there, or nobody to talk to: conclude at once
	silent               // no connection in time: a node that is off, or a network that drops
	shut                 // it closes the connection, and has never answered
	late                 // connected, and no whole answer in time
	broken               // an answer that ended early or was too much
)

// classify says how far a request got, and why it failed in words that help.
//
// A refused connection counts at the first time. On loopback and in a pod network it is the kernel's word that no
// process listens; a full queue of connections drops instead. Waiting for a second one would cost an interval of
// requests to a dead engine.
func (c *client) classify(err error, timeout time.Duration) (reach, string) {
	var dns *net.DNSError
	var op *net.OpError
	var slow net.Error
	if why := cmp.Or(tlsWords(err), c.protocolWords(err)); why != "" {
		return refused, why
	}
	switch {
	case errors.As(err, &dns):
		return refused, "its name is not found: " + dns.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused, "connection refused: no process listens there"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return refused, "no route to it"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		if c.dialing.Load() > 0 || errors.As(err, &op) && op.Op == "dial" {
			return silent, fmt.Sprintf("no connection within %v", timeout)
		}
		return late, fmt.Sprintf("no answer within %v", timeout)
	case errors.As(err, &op) && op.Op == "dial":
		return refused, "no connection: " + op.Err.Error()
	case errors.Is(err, errTooLarge):
		return broken, err.Error()
	}
	if c.hungUp(err) {
		return shut, "it closes the connection; " + c.otherWays()
	}
	return broken, "the answer broke off: " + err.Error()
}
