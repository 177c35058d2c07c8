package front

import "encoding/json"

// Paths of the gateway's own, which are for whoever watches it and are not counted.
const (
	PathLive  = "/healthz"
	PathReady = "/readyz"
)

// readiness is the body of PathReady.
type readiness struct {
	Ready    bool            `json:"ready"`
	Draining bool            `json:"draining"`
	Pools    []poolReadiness `json:"pools"`
}

type poolReadiness struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}

// Readiness says whether requests are welcome, and as JSON why: the gateway is not draining, and at least one pool has
// an endpoint for them. One pool without endpoints must not take the others out of traffic.
func (d *Desk) Readiness(draining bool) ([]byte, bool) {
	body := readiness{Draining: draining, Pools: []poolReadiness{}}
	for _, p := range d.fleet.Pools() {
		ready := p.Ready()
		body.Ready = body.Ready || ready
		body.Pools = append(body.Pools, poolReadiness{p.Name(), ready})
	}
	body.Ready = body.Ready && !draining
	data, _ := json.Marshal(body) // strings and truth values always marshal
	return append(data, '\n'), body.Ready
}
