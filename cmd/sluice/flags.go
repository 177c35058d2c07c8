package main

import (
	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/proxy"
)

// proxyFlags adds the flags that become proxy.Options.
func proxyFlags(f *pflag.FlagSet, o *serveOptions) {
	p := &o.proxy
	f.DurationVar(&p.ConnectTimeout, "connect-timeout", proxy.DefaultConnectTimeout, "time to connect to an endpoint before the next is tried")
	f.DurationVar(&p.FirstByteTimeout, "first-byte-timeout", proxy.DefaultFirstByteTimeout, "time to an answer's first body byte, over all attempts (negative: no limit)")
	f.DurationVar(&p.AttemptTimeout, "attempt-timeout", 0, "time one endpoint may keep a request without a byte while another could take it (0: no limit)")
	f.DurationVar(&p.IdleTimeout, "idle-timeout", proxy.DefaultIdleTimeout, "time between two body bytes in either direction (negative: no limit)")
	f.IntVar(&p.MaxAttempts, "max-attempts", proxy.DefaultMaxAttempts, "how many endpoints a request is sent to at most")
	f.Int64Var(&p.BodyBudget, "body-memory", front.DefaultBodyBudget, "`BYTES` that all request bodies together may take")
	f.Int64Var(&o.maxBody, "max-body-bytes", 0, "`BYTES` of one request body at most (default: the configuration's, 256 MiB)")
	f.StringArrayVar(&p.OpenPaths, "open-path", nil, "`PATH` to open to clients beside the inference paths, such as /v1/load_lora_adapter (repeatable)")
	f.StringVar(&o.sessionHeader, "session-header", "", "request header `NAME` with the id of the client's session, which stays at its endpoint while that is worth it (default: none; a GatewayPolicy's wins)")
	f.StringVar(&o.sessionCookie, "session-cookie", "", "cookie `NAME` with the id of the client's session, set where a request has neither it nor the header of --session-header")
	f.BoolVar(&p.TrustHeaders, "trust-client-headers", false, "keep gateway headers that clients send: clients are gateways themselves")
	f.BoolVar(&o.reveal, "reveal-endpoint", true, "name the endpoint and the reason for it in answers' headers")
}
