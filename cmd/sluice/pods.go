package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/kube"
)

// podOptions are the flags of a gateway whose endpoints are pods.
type podOptions struct{ namespace, configMap, kubeconfig string }

func podFlags(f *pflag.FlagSet, o *podOptions) {
	f.StringVar(&o.namespace, "pods", "", "`NAMESPACE` whose ready pods are endpoints of the schedulers in --file that select them, beside those of Endpoints documents")
	f.StringVar(&o.configMap, "config-map", "", "`NAMESPACE/NAME` of the ConfigMap that --file is mounted from, under the same name: it is read from the API server, too, which is a minute faster")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`FILE` that says how --pods reaches the API server (default: $KUBECONFIG, ~/.kube/config, or the cluster that it runs in)")
}

// check reports what cannot be used, with a configuration from a file or without.
func (o *podOptions) check(file string) error {
	var faults []error
	if o.namespace != "" && file == "" {
		faults = append(faults, errors.New("cannot use --pods without --file: its schedulers say which pods are meant"))
	}
	if o.namespace == "" && (o.configMap != "" || o.kubeconfig != "") {
		faults = append(faults, errors.New("cannot use --config-map or --kubeconfig without --pods: nothing else is read from an API server"))
	}
	if _, _, ok := o.file(); !ok {
		faults = append(faults, fmt.Errorf("cannot use --config-map %q: it is NAMESPACE/NAME", o.configMap))
	}
	return errors.Join(faults...)
}

// file is the ConfigMap with the documents, empty for none.
func (o *podOptions) file() (namespace, name string, ok bool) {
	if o.configMap == "" {
		return "", "", true
	}
	namespace, name, ok = strings.Cut(o.configMap, "/")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, "/")
}

// newCluster makes what tells of pods, where there are some. It asks nothing yet.
func (s *server) newCluster() error {
	o := &s.o.pods
	if o.namespace == "" {
		return nil
	}
	api, err := kube.Connect(o.kubeconfig)
	if err != nil {
		return fmt.Errorf("cannot use --pods: %w", err)
	}
	namespace, name, _ := o.file()
	s.cluster, err = kube.NewReader(kube.ReaderOptions{API: api, Namespace: o.namespace, FileNamespace: namespace, FileName: name,
		FileKey: filepath.Base(s.o.file), Log: s.log})
	if err != nil {
		return fmt.Errorf("cannot use --pods: %w", err)
	}
	s.registry.MustRegister(newFollowed(func() bool { return s.known.Load() && len(s.cluster.Why()) == 0 }))
	return nil
}

// newFollowed is the metric of an API server that tells of changes.
func newFollowed(all func() bool) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_pods_followed",
		Help: "With --pods: 1 while pods and the ConfigMap are followed, 0 while what is known of them may be old, because the API server can't be read."}, func() float64 {
		if all() {
			return 1
		}
		return 0
	})
}

// news are the changes in the cluster, nil without one.
func (s *server) news() <-chan struct{} {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.News()
}

// documents is the configuration as it is now: the ConfigMap's where an API server has told it, and else the file's, which may be
// half written.
func (s *server) documents() (text []byte, whole bool, err error) {
	if s.cluster != nil {
		if text := s.cluster.File(); text != nil {
			return text, true, nil
		}
	}
	text, err = os.ReadFile(s.o.file)
	return text, false, err
}

// take takes over what has changed in the cluster: the documents, or else the pods alone.
func (s *server) take(ctx context.Context) {
	if text := s.cluster.File(); text != nil && string(text) != string(s.text) {
		s.reload(ctx, true)
	}
	s.renew(s.cluster.Pods())
}

// renew makes the endpoints those that the running documents select among the pods that there are now. It waits for nobody:
// whoever is about to end must get no more requests.
func (s *server) renew(pods config.Pods) {
	if pods.List == nil {
		return
	}
	p, err := s.ready(s.plan.docs.With(pods))
	if err != nil {
		s.complain(err) // a key file that is gone: the configuration is read again until it is there
		return
	}
	p.docs, p.podsKnown = s.plan.docs, true
	joined, left := 0, 0
	for i, pool := range s.fleet.Pools() {
		j, l := turnover(s.plan.pools[i].Endpoints, p.pools[i].Endpoints)
		if j+l == 0 && sameEndpoints(s.plan.pools[i].Endpoints, p.pools[i].Endpoints) {
			continue
		}
		joined, left = joined+j, left+l
		pool.SetEndpoints(s.resolver.Remembered(p.pools[i].Endpoints))
	}
	s.notices(p)
	s.plan = p
	s.door.renew(p)
	s.known.Store(true)
	if joined+left > 0 {
		s.log.Info("pods have come and gone", "namespace", pods.Namespace, "joined", joined, "left", left, "known", len(pods.List))
	}
}

// turnover counts those that only the second list has, and those that only the first one has, or has in traffic.
func turnover(before, after []fleet.Endpoint) (joined, left int) {
	type seat struct{ host, uid string }
	in := make(map[seat]bool, len(before))
	for i := range before {
		if e := &before[i]; !e.Drain {
			in[seat{e.Host, e.UID}] = true
		}
	}
	for i := range after {
		e := &after[i]
		switch at := (seat{e.Host, e.UID}); {
		case e.Drain:
		case in[at]:
			delete(in, at)
		default:
			joined++
		}
	}
	return joined, len(in)
}

// sameEndpoints reports whether two lists of one plan's documents, for other pods, mean the same.
func sameEndpoints(a, b []fleet.Endpoint) bool {
	return slices.EqualFunc(a, b, func(a, b fleet.Endpoint) bool {
		return a.Host == b.Host && a.UID == b.UID && a.Drain == b.Drain && a.Engine == b.Engine && a.MetricsPort == b.MetricsPort &&
			a.MetricsPath == b.MetricsPath && a.KVEvents == b.KVEvents && a.Ranks == b.Ranks && a.FirstRank == b.FirstRank && maps.Equal(a.Labels, b.Labels)
	})
}

// adminReadiness is the JSON of /readyz on the admin listener.
type adminReadiness struct {
	Ready    bool     `json:"ready"`
	Draining bool     `json:"draining"`
	Why      []string `json:"why,omitempty"`
}

// serveReady says whether requests may come: the process knows its configuration and, if it has some, its pods, and does not
// drain. Whether an endpoint is ready is nothing to it: a rollout would wait for engines that wait for it. Why is also said
// of what is ready and may go by what it knew: an API server that is gone takes nothing out of traffic.
func (s *server) serveReady(w http.ResponseWriter, _ *http.Request) {
	r := adminReadiness{Ready: true, Draining: s.draining.Load()}
	if r.Draining {
		r.Ready = false
	}
	if s.cluster != nil {
		if !s.known.Load() {
			r.Ready = false
			r.Why = append(r.Why, fmt.Sprintf("the pods of namespace %q are not known yet", s.o.pods.namespace))
		}
		r.Why = append(r.Why, s.cluster.Why()...)
	}
	w.Header().Set("Content-Type", "application/json")
	if !r.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(r) // an error means that the reader has gone
}
