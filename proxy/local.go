package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// Paths of the gateway's own.
const (
	pathLive  = "/healthz"
	pathReady = "/readyz"
)

// local answers what needs no endpoint, and reports whether it has.
func (g *Gateway) local(c *call) bool {
	switch c.r.URL.Path {
	case pathLive:
		c.reply(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
		return true
	case pathReady:
		c.ready()
		return true
	}
	e := c.req.Admit()
	if e == nil && c.req.Path.Operation != "models" {
		return false
	}
	var list []byte
	if e == nil {
		list, e = c.req.Models()
	}
	if e != nil {
		c.fail(e)
	} else {
		c.reply(http.StatusOK, "application/json", list)
	}
	c.finish()
	return true
}

func (c *call) reply(status int, contentType string, body []byte) {
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.req.Ended.Status = status
	c.leaveUnread()
	c.w.WriteHeader(status)
	if c.r.Method != http.MethodHead {
		_, _ = c.w.Write(body) // a client that left needs no answer
	}
}

// readiness is the body of /readyz.
type readiness struct {
	Ready    bool            `json:"ready"`
	Draining bool            `json:"draining"`
	Pools    []poolReadiness `json:"pools"`
}

type poolReadiness struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}

// ready says whether requests are welcome: the gateway is not draining, and at least one pool has an endpoint for them.
// One pool without endpoints must not take the others out of traffic.
func (c *call) ready() {
	body := readiness{Draining: c.g.draining.Load(), Pools: []poolReadiness{}}
	for _, p := range c.g.fleet.Pools() {
		ready := p.Ready()
		body.Ready = body.Ready || ready
		body.Pools = append(body.Pools, poolReadiness{p.Name(), ready})
	}
	body.Ready = body.Ready && !body.Draining
	status := http.StatusOK
	if !body.Ready {
		status = http.StatusServiceUnavailable
	}
	data, _ := json.Marshal(body) // strings and truth values always marshal
	c.reply(status, "application/json", append(data, '\n'))
}
