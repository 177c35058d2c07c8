package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

const flagExample = "for example --endpoint Qwen/Qwen3-8B=10.0.0.1:8000,10.0.0.2:8000"

// FromFlags reads the shorthand MODEL=HOST:PORT[,HOST:PORT…], once for each flag. Flags that name the same model add up
// to one pool; pools route by latency and the body's model chooses among them. The last '=' divides, because a host has
// none and a model's name may. An address is as in Endpoints documents, with https:// in front where the endpoint is
// reached by TLS; without a port 8000 is meant, and after https:// 443. Every endpoint publishes its KV events as events says. An error is always a *Faults, and holds
// everything that is wrong.
func FromFlags(endpoints []string, events KVEvents) (*Config, error) {
	c := &Config{Source: "--endpoint", SelectModel: true, MaxBodyBytes: v1alpha1.MaxRequestBodyBytes}
	var faults []Fault
	if len(endpoints) == 0 {
		faults = append(faults, Fault{Text: "no endpoint is given: " + flagExample})
	}
	for _, value := range endpoints {
		if err := c.takeFlag(value); err != nil {
			faults = append(faults, Fault{Text: fmt.Sprintf("--endpoint %q: %v; %s", value, err, flagExample)})
		}
	}
	if faults != nil {
		return nil, &Faults{Source: c.Source, List: faults}
	}
	for i := range c.Pools {
		c.Pools[i].Scheduler = c.poolName(i)
		for j := range c.Pools[i].Endpoints {
			c.Pools[i].Endpoints[j].KVEvents = events
		}
	}
	c.warnShared("", "")
	c.warnEvents("", "")
	return c, nil
}

func (c *Config) takeFlag(value string) error {
	cut := strings.LastIndexByte(value, '=')
	if cut < 0 {
		return errors.New("must be MODEL=HOST:PORT, and has no '='")
	}
	model, list := value[:cut], value[cut+1:]
	switch {
	case model == "":
		return errors.New("has no model before '='")
	case strings.Contains(model, "=http://"), strings.Contains(model, "=https://"):
		return errors.New("has '=' in an address: an address is HOST:PORT and nothing else")
	case len([]rune(model)) > v1alpha1.MaxModelName:
		return fmt.Errorf("has a model name of %d characters, at most %d are allowed", len([]rune(model)), v1alpha1.MaxModelName)
	}
	i := slices.IndexFunc(c.Pools, func(p Pool) bool { return p.Model == model })
	if i < 0 {
		i = len(c.Pools)
		c.Pools = append(c.Pools, Pool{Model: model, AppProtocol: HTTP})
	}
	for _, text := range strings.Split(list, ",") {
		e, err := flagEndpoint(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		if slices.ContainsFunc(c.Pools[i].Endpoints, func(o Endpoint) bool { return o.HostPort() == e.HostPort() }) {
			return fmt.Errorf("has %s for model %q a second time", e.HostPort(), model)
		}
		c.Pools[i].Endpoints = append(c.Pools[i].Endpoints, e)
	}
	return nil
}

func flagEndpoint(text string) (Endpoint, error) {
	e := Endpoint{Port: int(v1alpha1.DefaultTargetPort)}
	rest, secure := strings.CutPrefix(text, "https://")
	if secure {
		e.TLS, e.Port = &TLS{}, 443
	} else {
		rest = strings.TrimPrefix(rest, "http://")
	}
	if rest == "" {
		return e, errors.New("has an empty address")
	}
	host, port, err := address(rest)
	if err != nil {
		return e, fmt.Errorf("address %q %w", text, err)
	}
	e.Address = host
	if port != 0 {
		e.Port = port
	}
	return e, nil
}

// poolName makes a name for a pool out of its model's: lower-case letters, digits and '-', unique among the pools
// before it.
func (c *Config) poolName(i int) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, c.Pools[i].Model)
	name = name[:min(len(name), v1alpha1.MaxSchedulerName-4)]
	if name = strings.Trim(name, "-"); name == "" {
		name = "model"
	}
	unique := name
	for n := 2; slices.ContainsFunc(c.Pools[:i], func(p Pool) bool { return p.Scheduler == unique }); n++ {
		unique = fmt.Sprintf("%s-%d", name, n)
	}
	return unique
}
