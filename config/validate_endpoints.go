package config

import (
	"fmt"
	"iter"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// validateEndpoints checks an Endpoints document on its own.
func validateEndpoints(e *v1alpha1.Endpoints) field.ErrorList {
	c := &checks{}
	c.metadata(&e.ObjectMeta)
	spec := field.NewPath("spec")
	c.labels(spec.Child("labels"), e.Spec.Labels)
	if len(e.Spec.Endpoints) == 0 {
		c.add(field.Required(spec.Child("endpoints"), "at least one address, such as [{address: 10.0.0.1:8000}]"))
	}
	c.count(spec.Child("endpoints"), len(e.Spec.Endpoints), v1alpha1.MaxEndpoints)
	c.kvEvents(spec.Child("kvEvents"), e.Spec.KVEvents)
	for i := range e.Spec.Endpoints {
		c.ranks(spec.Child("endpoints").Index(i), &e.Spec.Endpoints[i], e.Spec.KVEvents)
		c.entry(spec.Child("endpoints").Index(i), &e.Spec.Endpoints[i])
	}
	return c.errs
}

func (c *checks) entry(path *field.Path, e *v1alpha1.EndpointEntry) {
	if e.Address == "" {
		c.add(field.Required(path.Child("address"), "HOST or HOST:PORT"))
	} else if _, _, err := address(e.Address); err != nil {
		c.add(field.Invalid(path.Child("address"), e.Address, err.Error()))
	}
	c.labels(path.Child("labels"), e.Labels)
	oneOf(c, path.Child("engine"), e.Engine, v1alpha1.EngineVLLM, v1alpha1.EngineSGLang, v1alpha1.EngineTGI,
		v1alpha1.EngineLlamaCPP, v1alpha1.EngineTRTLLM, v1alpha1.EngineTriton, v1alpha1.EngineGeneric)
	if m := e.Metrics; m != nil {
		if m.Path != "" && m.Path[0] != '/' {
			c.add(field.Invalid(path.Child("metrics", "path"), m.Path, "must begin with '/', such as /metrics"))
		}
		within(c, path.Child("metrics", "port"), m.Port, 1, 65535)
	}
	if t := e.TLS; t != nil && t.InsecureSkipVerify && t.CAFile != "" {
		c.add(field.Invalid(path.Child("tls", "caFile"), t.CAFile, "has no effect when insecureSkipVerify is true: remove one of the two"))
	}
	if e.APIKey != nil {
		c.apiKey(path.Child("apiKey"), e.APIKey)
	}
}

func (c *checks) kvEvents(path *field.Path, k *v1alpha1.EndpointKVEvents) {
	if k == nil {
		return
	}
	within(c, path.Child("port"), k.Port, 0, 65535)
	within(c, path.Child("replayPort"), k.ReplayPort, 0, 65535)
	switch e := kvEvents(k); {
	case e.Port != 0 && e.Port == e.ReplayPort:
		c.add(field.Invalid(path.Child("replayPort"), e.ReplayPort, "must be another port than the one of the events"))
	case e.Port == 0 && *k.ReplayPort != 0 && *k.ReplayPort != v1alpha1.DefaultKVReplayPort: // the default is nobody's wish
		c.add(field.Invalid(path.Child("replayPort"), *k.ReplayPort, "has no effect when port is 0, which says that the engine publishes nothing: remove it, or set port"))
	}
}

// ranks checks the ranks of an address, and that their ports, which count up from the first, are each their own.
func (c *checks) ranks(path *field.Path, e *v1alpha1.EndpointEntry, all *v1alpha1.EndpointKVEvents) {
	within(c, path.Child("ranks"), e.Ranks, 1, v1alpha1.MaxRanks)
	within(c, path.Child("firstRank"), e.FirstRank, 0, 65535)
	own := e.KVEvents
	c.kvEvents(path.Child("kvEvents"), own)
	if own == nil {
		own = all
	}
	if e.Ranks == nil {
		if e.FirstRank != nil {
			c.add(field.Required(path.Child("ranks"), "how many ranks the address has, because firstRank is set"))
		}
		return
	}
	first := int32(0)
	if e.FirstRank != nil {
		first = *e.FirstRank
	}
	if first > 0 && e.Engine == "" {
		c.add(field.Required(path.Child("engine"), "which engine it is, because firstRank is set: vllm counts ranks in requests from 0 at each address, sglang over all"))
	}
	if own == nil {
		return
	}
	ports, last := kvEvents(own), int(first+*e.Ranks)-1
	switch distance := ports.Port - ports.ReplayPort; {
	case ports.Port == 0:
	case max(ports.Port, ports.ReplayPort)+last > 65535:
		c.add(field.Invalid(path.Child("ranks"), *e.Ranks, "needs ports over 65535: the last rank's are those of kvEvents plus its number"))
	case ports.ReplayPort != 0 && max(distance, -distance) < int(*e.Ranks):
		c.add(field.Invalid(path.Child("ranks"), *e.Ranks, fmt.Sprintf("makes ports overlap, because each rank's are those of kvEvents plus its number: "+
			"set kvEvents.replayPort (%d) at least %d apart from port (%d), here and at the engine", ports.ReplayPort, *e.Ranks, ports.Port)))
	}
}

var environmentName = regexp.MustCompile(v1alpha1.VariablePattern)

// apiKey never shows a value: the likeliest mistake is the key itself.
func (c *checks) apiKey(path *field.Path, k *v1alpha1.APIKeySource) {
	switch {
	case k.Env == "" && k.File == "":
		c.add(field.Required(path, v1alpha1.MessageAPIKeySource))
	case k.Env != "" && k.File != "":
		c.add(field.Invalid(path, field.OmitValueType{}, v1alpha1.MessageAPIKeySource))
	}
	switch {
	case k.Env != "" && len(k.Env) > v1alpha1.MaxVariableName:
		c.add(tooLong(path.Child("env"), len(k.Env), v1alpha1.MaxVariableName))
	case len(k.File) > v1alpha1.MaxPath:
		c.add(tooLong(path.Child("file"), len(k.File), v1alpha1.MaxPath))
	case k.Env != "" && !environmentName.MatchString(k.Env):
		c.add(field.Invalid(path.Child("env"), field.OmitValueType{}, "must be the name of an environment variable, never the key itself"))
	}
}

// twice finds addresses that stand in the documents more than once.
func twice(docs []*document, lists []*v1alpha1.Endpoints) {
	seen := map[string]string{}
	for n, l := range lists {
		for i := range l.Spec.Endpoints {
			host, port, err := address(l.Spec.Endpoints[i].Address)
			if err != nil {
				continue
			}
			path := field.NewPath("spec", "endpoints").Index(i)
			key := net.JoinHostPort(host, strconv.Itoa(port))
			if first, taken := seen[key]; taken {
				docs[n].add(field.Invalid(path.Child("address"), l.Spec.Endpoints[i].Address, fmt.Sprintf("must be unique: %s has the same address", first)))
				continue
			}
			seen[key] = fmt.Sprintf("%s %s", docs[n].ref(), path)
		}
	}
}

// sorted goes over a map in the order of its keys, so that faults have one order.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
