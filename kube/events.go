package kube

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// maxNote is the longest note of an Event.
const maxNote = 1024

// teller makes Events of what changes in a status.
type teller struct {
	broadcaster events.EventBroadcaster
	recorder    events.EventRecorder
}

// newTeller makes one that tells until ctx ends.
func (t *turn) newTeller(ctx context.Context) (*teller, error) {
	c, err := eventsclient.NewForConfigAndClient(t.config, t.http)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for Events: %w", err)
	}
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: c})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("cannot record Events: %w", err)
	}
	return &teller{b, b.NewRecorder(t.scheme, translate.Controller)}, nil
}

func (e *teller) end() { e.broadcaster.Shutdown() }

// good reports whether a condition is as it should be.
func good(c *metav1.Condition) bool {
	if c.Type == v1alpha1.ConditionAdmissionBlocked {
		return c.Status == metav1.ConditionFalse
	}
	return c.Status == metav1.ConditionTrue
}

// changes tells of conditions that hold now and didn't, the other way round, or for another reason. A condition that is
// first seen as it should be, or of which nothing is known, is no news. What is of one scheduler is told as that, and not
// once more as what is of all.
func (e *teller) changes(config *v1alpha1.InferenceGatewayConfig, before []metav1.Condition, after *v1alpha1.InferenceGatewayConfigStatus) {
	for _, c := range after.Conditions {
		if c.Type != v1alpha1.ConditionServing && c.Type != v1alpha1.ConditionMetricsRead {
			e.change(config, "", before, &c)
		}
	}
	for _, s := range after.Schedulers {
		var was []metav1.Condition
		for _, b := range config.Status.Schedulers {
			if b.Name == s.Name {
				was = b.Conditions
			}
		}
		for _, c := range s.Conditions {
			if c.Type != v1alpha1.ConditionAccepted { // what is against a scheduler is against the whole, too
				e.change(config, fmt.Sprintf("scheduler %q: ", s.Name), was, &c)
			}
		}
	}
}

func (e *teller) change(config *v1alpha1.InferenceGatewayConfig, of string, before []metav1.Condition, c *metav1.Condition) {
	first := true
	for _, b := range before {
		if b.Type == c.Type {
			first = false
			if b.Status == c.Status && b.Reason == c.Reason {
				return
			}
		}
	}
	if c.Status == metav1.ConditionUnknown || first && good(c) {
		return
	}
	kind := corev1.EventTypeWarning
	if good(c) {
		kind = corev1.EventTypeNormal
	}
	note := fmt.Sprintf("%s%s: %s", of, c.Type, c.Message)
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-4], "") + " ..."
	}
	e.recorder.Eventf(config, nil, kind, c.Reason, "Reconcile", "%s", note)
}
