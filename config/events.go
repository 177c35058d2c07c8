package config

import (
	"fmt"
	"strings"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// publishes reports whether an engine can publish KV events that are read here; one that is still to be found may.
func publishes(engine string) bool {
	switch v1alpha1.EngineKind(engine) {
	case v1alpha1.EngineTGI, v1alpha1.EngineLlamaCPP, v1alpha1.EngineTRTLLM:
		return false
	}
	return true
}

// prefixes says of a pool at which endpoints it will be known which prefixes they hold, and where that is guessed.
func prefixes(x *Pool, clashing map[string]bool) []string {
	var exact, late, guessed []string
	for _, e := range x.Endpoints {
		switch {
		case e.KVEvents.Port == 0 || clashing[e.HostPort()] || !publishes(e.Engine):
			guessed = append(guessed, e.HostPort())
		case e.KVEvents.ReplayPort == 0:
			late = append(late, e.HostPort())
		default:
			exact = append(exact, e.HostPort())
		}
	}
	at := func(hosts []string) string {
		if len(hosts) == len(x.Endpoints) {
			return "at every endpoint"
		}
		const most = 4
		said := strings.Join(hosts[:min(len(hosts), most)], ", ")
		if more := len(hosts) - most; more > 0 {
			said += fmt.Sprintf(" and %d more", more)
		}
		return "at " + said
	}
	var lines []string
	if len(exact) > 0 {
		lines = append(lines, "exact by KV events, of what was cached before too as far as it is replayed, "+at(exact))
	}
	if len(late) > 0 {
		lines = append(lines, "exact by KV events from their beginning on (no replay port), "+at(late))
	}
	if len(guessed) > 0 {
		lines = append(lines, "guessed by what was sent there, "+at(guessed))
	}
	if len(guessed) == len(x.Endpoints) && len(guessed) > 0 {
		lines = append(lines, "vLLM and SGLang can tell by KV events: kvEvents in Endpoints, or --kv-events-port")
	} else if len(x.Endpoints) > 0 {
		lines = append(lines, "prompts with images, and those whose tokens an engine doesn't tell, are guessed everywhere")
	}
	return lines
}

// warnEvents tells of ports of KV events at which none will come, or another's.
func (c *Config) warnEvents(object, path string) {
	c.checkEvents(func(hostPort, why string) {
		c.Warnings = append(c.Warnings, Notice{Object: object, Path: path, Value: hostPort, Why: why})
	})
}

// checkEvents gives each port of KV events to the first endpoint that has it, and says what is wrong with which other. Those
// whose events would be another's are returned, by HostPort: they are not followed.
func (c *Config) checkEvents(say func(hostPort, why string)) (clashing map[string]bool) {
	type owner struct{ endpoint, what string }
	taken := map[string]owner{}
	clashing = map[string]bool{}
	warn := func(hostPort, format string, args ...any) { say(hostPort, fmt.Sprintf(format, args...)) }
	// claim takes the ports of all ranks, and tells of the first that is taken: a hundred more would say no more.
	claim := func(e Endpoint, port int, what string) {
		told := false
		for rank := range max(e.Ranks, 1) {
			at := port + e.FirstRank + rank
			key := fmt.Sprintf("%s %d", e.Address, at)
			first, was := taken[key]
			switch {
			case !was:
				taken[key] = owner{e.HostPort(), what}
				continue
			case told:
				continue
			}
			told = true
			remedy := "or events will be missing or taken for another's"
			if first.what == what && first.endpoint != e.HostPort() {
				clashing[e.HostPort()] = true
				remedy = "or what it holds is guessed"
			}
			whose := first.endpoint + "'s"
			if first.endpoint == e.HostPort() {
				whose = "also its own"
			}
			warn(e.HostPort(), "has port %d for its %s, which is %s for %s: give it one of its own, %s",
				at, what, whose, first.what, remedy)
		}
	}
	all := c.distinct()
	for _, e := range all {
		taken[fmt.Sprintf("%s %d", e.Address, e.Port)] = owner{e.HostPort(), "requests"}
		if e.MetricsPort != 0 {
			taken[fmt.Sprintf("%s %d", e.Address, e.MetricsPort)] = owner{e.HostPort(), "metrics"}
		}
	}
	for _, e := range all {
		if e.KVEvents.Port == 0 {
			continue
		}
		if !publishes(e.Engine) {
			warn(e.HostPort(), "has kvEvents, and the engine %s publishes none that can be read here: what it holds is guessed", e.Engine)
			continue
		}
		claim(e, e.KVEvents.Port, "KV events")
		if e.KVEvents.ReplayPort != 0 {
			claim(e, e.KVEvents.ReplayPort, "replay of KV events")
		}
	}
	return clashing
}

// distinct lists the endpoints of all pools, each once, without pods: each of those has an address, and all ports, of its own.
func (c *Config) distinct() (all []Endpoint) {
	seen := map[string]bool{}
	for _, p := range c.Pools {
		for _, e := range p.Endpoints {
			if e.Pod == "" && !seen[e.HostPort()] {
				seen[e.HostPort()] = true
				all = append(all, e)
			}
		}
	}
	return all
}
