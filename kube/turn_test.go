package kube

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// A configuration that has changed asks for a look at what is to be followed only where something isn't: its status is written
// often. One that is gone always does.
func TestConfigChanged(t *testing.T) {
	turn := &turn{nudge: make(chan struct{}, 1), feeds: &feeds{running: make(map[string]*feed), denied: make(map[string]string)},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())}
	defer turn.queue.ShutDown()
	config := new(v1alpha1.InferenceGatewayConfig)
	config.Namespace, config.Name = "models", "gw"
	f := func(when string, change func(), looks bool) {
		t.Helper()
		change()
		select {
		case <-turn.nudge:
			if !looks {
				t.Errorf("%s: it asks for a look", when)
			}
		default:
			if looks {
				t.Errorf("%s: it asks for no look", when)
			}
		}
	}
	changed := func() { turn.configChanged(config) }
	pods, services := turn.podsOf("models").id(), turn.servicesOf("models").id()
	f("its namespace is new", changed, true)
	turn.feeds.denied[pods] = "list pods"
	f("pods can't be followed", changed, false)
	turn.feeds.running[pods] = new(feed)
	f("pods are followed", changed, false)
	config.Spec.BBR.DefaultBackend = &v1alpha1.DefaultBackend{Name: "fallback"}
	f("Services are wanted", changed, true)
	turn.feeds.running[services] = new(feed)
	f("all is followed", changed, false)
	f("it is gone", func() { turn.configGone(config) }, true)
}
