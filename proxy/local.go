package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/route"
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
	if c.admit() {
		if c.path.Operation != "models" {
			return false
		}
		c.models()
	}
	c.finish()
	return true
}

func (c *call) reply(status int, contentType string, body []byte) {
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.status = status
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

// models answers /v1/models with the union over the pools that have a ready endpoint, and /v1/models/{id} with one of
// it.
func (c *call) models() {
	var lists [][]openai.Model
	for _, p := range c.g.fleet.Pools() {
		if p.Ready() {
			lists = append(lists, listed(p))
		}
	}
	id := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(c.r.URL.Path, "/"), "/v1/models"), "/")
	if id == "" {
		c.reply(http.StatusOK, "application/json", openai.MergeModels(lists...))
		return
	}
	id = strings.TrimPrefix(id, "/")
	for _, list := range lists {
		for _, m := range list {
			if m.ID == id {
				c.reply(http.StatusOK, "application/json", m.JSON())
				return
			}
		}
	}
	c.fail(openai.ModelNotFound.Errorf("no pool lists %.100q; GET /v1/models lists what is served", id))
}

// listed is what a pool's engines list. Names that only the configuration knows are added, because requests for them
// are served: an engine that was started under a path lists that path.
func listed(p *fleet.Pool) []openai.Model {
	var list []openai.Model
	have := make(map[string]bool)
	for _, m := range p.Models() {
		have[m.ID] = true
		list = append(list, openai.Model{ID: m.ID, Parent: m.Parent, Raw: m.Raw})
	}
	if name := p.Config().Model; name != "" && !have[name] {
		list = append(list, openai.Model{ID: name})
	}
	return list
}

// record puts a decision into the form that replay reads; lease is nil where none was made.
func (c *call) record(choice fleet.Choice, lease *fleet.Lease) *route.Record {
	r := c.pool.Config().Profile.Record(choice.View, choice.Decision)
	r.ID, r.Time, r.Pool = c.id, time.Now().UTC().Format(time.RFC3339Nano), c.pool.Name()
	if lease != nil {
		r.Cached, r.CachedExact = lease.Cached, lease.CachedExact
	}
	return &r
}
