package proxy

import (
	"net/http"
	"strconv"

	"github.com/sluice-gateway/sluice/front"
)

// local answers what needs no endpoint, and reports whether it has.
func (g *Gateway) local(c *call) bool {
	switch c.r.URL.Path {
	case front.PathLive:
		c.reply(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
		return true
	case front.PathReady:
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

// ready says whether requests are welcome.
func (c *call) ready() {
	body, ok := c.g.desk.Readiness(c.g.draining.Load())
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	c.reply(status, "application/json", body)
}
