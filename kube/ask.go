package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// Bounds of what a picker is asked.
const (
	askFor  = 3 * time.Second
	askMost = 32 << 20 // bytes of an answer: a thousand endpoints are one or two
	// askSoon is how often pickers are asked for askSoonFor after their document has changed: what they said before speaks of another one.
	askSoon    = 1500 * time.Millisecond
	askSoonFor = 30 * time.Second
)

// podFacts is what pickers know of a pod, or of an address that is none: that has no uid, and whether it is ready the pickers
// say alone.
type podFacts struct {
	uid   types.UID
	ready bool
	tried map[string]tried // by pool
}

// tried is what came of a picker's last look at an endpoint: whether its metrics were read, nil where nobody has looked, which
// names those lack, and which models it lists; why it reaches nothing there, empty where it does, and whether that lasts, since it
// was so when it was asked before, too. Port is where it looked, 0 for an address, which has its own: each pool may have another
// one, so that what is found at one says nothing of the other.
type tried struct {
	port    int32
	metrics *bool
	missing []string
	models  []string
	why     string
	lasts   bool
}

// asker asks pickers what they know of model servers. One that does not answer makes what it said before count for a while,
// and then nothing be known.
type asker struct {
	now  func() time.Time
	http *http.Client
	log  *slog.Logger

	mu      sync.Mutex
	known   map[types.NamespacedName]*answers
	changes map[types.NamespacedName]change
}

// change is when a configuration was first seen in its generation.
type change struct {
	generation int64
	at         time.Time
}

// answers are those of one configuration's pickers.
type answers struct {
	pods map[string]podFacts
	at   map[string]time.Time // by workload: when its picker last answered
	last map[string]string    // by workload: the pod that did
}

func newAsker(now func() time.Time, log *slog.Logger) *asker {
	dialer := &net.Dialer{Timeout: askFor}
	return &asker{now: now, log: log, known: make(map[types.NamespacedName]*answers), changes: make(map[types.NamespacedName]change),
		http: &http.Client{Timeout: askFor, Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}}}
}

// facts is what is known of the pods of a configuration, by name, and of its addresses, by ADDRESS:PORT.
func (a *asker) facts(key types.NamespacedName) map[string]podFacts {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.known[key]; k != nil {
		return maps.Clone(k.pods)
	}
	return nil
}

func (a *asker) forget(key types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, key)
	delete(a.changes, key)
}

// changed reports whether a configuration has come or changed lately, so that its pickers are to be asked more often.
func (a *asker) changed(config *v1alpha1.InferenceGatewayConfig) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, now := client.ObjectKeyFromObject(config), a.now()
	if c, ok := a.changes[key]; !ok || c.generation != config.Generation {
		a.changes[key] = change{config.Generation, now}
	}
	return now.Sub(a.changes[key].at) < askSoonFor
}

// witness is a picker that can be asked.
type witness struct{ workload, pod, address string }

// witnesses are those pickers of a configuration that can be asked, one of each workload: the one that answered last, while
// it is there, since two may see the same pods differently for a moment.
func (a *asker) witnesses(config *v1alpha1.InferenceGatewayConfig, list []corev1.Pod) []witness {
	a.mu.Lock()
	defer a.mu.Unlock()
	var last map[string]string
	if k := a.known[client.ObjectKeyFromObject(config)]; k != nil {
		last = k.last
	}
	mine := translate.Metadata(config, config.Namespace, "").Labels[translate.LabelConfig]
	chosen := make(map[string]witness)
	slices.SortFunc(list, func(x, y corev1.Pod) int { return cmp.Compare(x.Name, y.Name) })
	for i := range list {
		pod := &list[i]
		port := askedAt(pod)
		if port == 0 || pod.Labels[translate.LabelConfig] != mine || !podReady(pod) || pod.DeletionTimestamp != nil || pod.Status.PodIP == "" {
			continue
		}
		workload := pod.Labels[labelApp]
		if _, taken := chosen[workload]; !taken || last[workload] == pod.Name {
			chosen[workload] = witness{workload, pod.Name, net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port)))}
		}
	}
	return slices.SortedFunc(maps.Values(chosen), func(x, y witness) int { return cmp.Compare(x.workload, y.workload) })
}

// labelApp tells the pods of one workload.
const labelApp = "app"

// fleetPool and fleetEndpoint are what is read of an answer.
type fleetPool struct {
	Pool      string          `json:"pool"`
	Endpoints []fleetEndpoint `json:"endpoints"`
}

type fleetEndpoint struct {
	Host           string   `json:"host"`
	Pod            string   `json:"pod"`
	State          string   `json:"state"`
	Why            string   `json:"why"`
	MetricsRead    *bool    `json:"metricsRead"`
	MissingMetrics []string `json:"missingMetrics"`
	Models         []string `json:"models"`
}

// ask asks the pickers of a configuration, and reports whether they say anything new. uids are those of its pods now.
func (a *asker) ask(ctx context.Context, key types.NamespacedName, pickers []witness, uids map[string]types.UID, patience time.Duration) (news bool) {
	pools := make([][]fleetPool, len(pickers))
	faults := make([]error, len(pickers))
	_ = each(len(pickers), func(i int) error { // each one's own fault is its own matter
		pools[i], faults[i] = a.fleet(ctx, pickers[i].address)
		return nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.known[key]
	if before == nil {
		before = &answers{}
	}
	next := &answers{pods: make(map[string]podFacts), at: make(map[string]time.Time), last: make(map[string]string)}
	now, old := a.now(), false
	for i, p := range pickers {
		if faults[i] == nil {
			next.at[p.workload], next.last[p.workload] = now, p.pod
			continue
		}
		a.log.Debug("a picker does not say what it knows of pods", "gateway", key.String(), "pod", p.pod, "error", faults[i])
		if at, ok := before.at[p.workload]; ok && now.Sub(at) < patience {
			next.at[p.workload], next.last[p.workload], old = at, before.last[p.workload], true
		}
	}
	if old || len(pickers) == 0 && !slices.ContainsFunc(slices.Collect(maps.Values(before.at)), func(at time.Time) bool { return now.Sub(at) >= patience }) {
		maps.Copy(next.pods, before.pods)
		if len(pickers) == 0 {
			next.at, next.last = before.at, before.last
		}
	}
	fresh := make(map[spoken]bool)
	for _, list := range pools {
		take(next.pods, before.pods, list, uids, fresh)
	}
	maps.DeleteFunc(next.pods, func(name string, f podFacts) bool { return uids[name] != f.uid })
	a.known[key] = next
	return !reflect.DeepEqual(before.pods, next.pods) && len(before.pods)+len(next.pods) > 0
}

// What a picker says of an endpoint that it sends requests to, of one that it can't reach, and of one that gets nothing new.
const (
	stateReady    = "ready"
	stateNotReady = "not ready"
	stateDraining = "draining"
)

// spoken is that something was said of a pod or an address, by a pool's picker, or by any where the pool is empty.
type spoken struct{ name, pool string }

// take notes what a picker says of pods, and of addresses that are none. One whose ranks are endpoints of their own is ready when
// one of them is, and its metrics are read when all of theirs are. What nobody has been asked yet leaves what was said before: a picker
// that has just begun knows less than the one whose place it takes. So does what nobody speaks of now, of those that are known already.
// fresh are those that have been said something of in this round.
func take(pods, before map[string]podFacts, pools []fleetPool, uids map[string]types.UID, fresh map[spoken]bool) {
	for _, p := range pools {
		for _, e := range p.Endpoints {
			name, uid := e.Pod, uids[e.Pod]
			switch {
			case name == "" && e.Host == "":
				continue
			case name == "":
				name = e.Host
			case uid == "":
				continue
			}
			was := before[name]
			if was.uid != uid {
				was = podFacts{}
			}
			f := podFacts{uid: uid, ready: uid == "" && e.State == stateReady, tried: make(map[string]tried)}
			if e.MetricsRead == nil {
				f.ready = was.ready
			}
			if others := pods[name]; others.uid == uid {
				maps.Copy(f.tried, others.tried)
				f.ready = f.ready || others.ready && fresh[spoken{name, ""}]
			}
			if !fresh[spoken{name, p.Pool}] {
				delete(f.tried, p.Pool)
			}
			f.try(p.Pool, &e, was.tried[p.Pool])
			pods[name], fresh[spoken{name, ""}], fresh[spoken{name, p.Pool}] = f, true, true
		}
	}
}

// try notes what came of a look at a rank of a pool's endpoint, or at the whole of it, where before is what came of the one before.
func (f *podFacts) try(pool string, e *fleetEndpoint, before tried) {
	now := before
	if e.MetricsRead != nil {
		now = tried{metrics: e.MetricsRead, missing: e.MissingMetrics, models: e.Models}
		if e.State == stateNotReady {
			now.why, now.lasts = cmp.Or(e.Why, "it can't be reached"), before.why != ""
		}
	}
	if f.uid != "" {
		if at, err := netip.ParseAddrPort(e.Host); err == nil {
			now.port = int32(at.Port())
		}
	}
	switch other := f.tried[pool]; { // another rank of it
	case other.metrics == nil:
	case now.metrics == nil:
		now = other
	default:
		if other.why == "" {
			now.why, now.lasts = "", false
		}
		if !*other.metrics {
			now.metrics = other.metrics
		}
	}
	f.tried[pool] = now
}

// fleet is what a picker knows.
func (a *asker) fleet(ctx context.Context, address string) ([]fleetPool, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/fleet", nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask: %w", err)
	}
	answer, err := a.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("cannot ask: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("cannot ask: it answers %s", answer.Status)
	}
	var pools []fleetPool
	if err := json.NewDecoder(io.LimitReader(answer.Body, askMost)).Decode(&pools); err != nil {
		return nil, fmt.Errorf("cannot read the answer: %w", err)
	}
	return pools, nil
}

// keepAsking asks the pickers of all configurations until ctx ends, and more often those of documents that have changed lately.
func (t *turn) keepAsking(ctx context.Context) {
	last := t.options.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(askSoon, t.options.Ask)):
		}
		var all v1alpha1.InferenceGatewayConfigList
		if err := t.feeds.list(ctx, t.configs(), &all); err != nil {
			continue
		}
		if now := t.options.Now(); now.Sub(last) >= t.options.Ask {
			last = now
			for i := range all.Items {
				t.asker.changed(&all.Items[i]) // from when on it is so
			}
		} else {
			all.Items = slices.DeleteFunc(all.Items, func(c v1alpha1.InferenceGatewayConfig) bool { return !t.asker.changed(&c) })
		}
		_ = each(len(all.Items), func(i int) error { // one that can't be asked about is asked about the next time
			config := &all.Items[i]
			var list corev1.PodList
			if err := t.feeds.list(ctx, t.podsOf(config.Namespace), &list); err != nil {
				return nil
			}
			uids := make(map[string]types.UID, len(list.Items))
			for j := range list.Items {
				uids[list.Items[j].Name] = list.Items[j].UID
			}
			key := client.ObjectKeyFromObject(config)
			if t.asker.ask(ctx, key, t.asker.witnesses(config, list.Items), uids, 4*t.options.Ask) {
				t.again(key)
			}
			return nil
		})
	}
}
