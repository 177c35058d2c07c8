package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/translate"
)

// classKind is the kind of what Gateways are of.
func classKind() kind { return of(groupGateway, "v1", "GatewayClass", "gatewayclasses") }

// keepClass has the GatewayClass made where there is none, and reports whether something else is wrong with it than before.
func (t *turn) keepClass(ctx context.Context) (changed bool) {
	err := t.makeClass(ctx)
	var away *url.Error
	if ctx.Err() != nil || errors.As(err, &away) { // that the API server does not answer is said elsewhere, and says nothing of the class
		return false
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	t.mu.Lock()
	changed, t.classFault = text != t.classFault, text
	t.mu.Unlock()
	if changed && err != nil {
		t.log.Error("the GatewayClass is not what it should be", "error", err)
	}
	return changed
}

// makeClass makes the GatewayClass where there is none, as soon as the API server knows the kind. One that is there stays as it is,
// whosever it is, and nothing ever deletes it: Envoy Gateway ends all Envoys of a class that goes, and a chart that made it would
// take it along. Where a person deletes one of somebody else's, it is made.
func (t *turn) makeClass(ctx context.Context) error {
	name, owner := t.options.Settings.GatewayClass, t.options.ClassOwner
	if owner == "" || !t.definitions.knows(classKind()) {
		return nil
	}
	c := new(gatewayv1.GatewayClass)
	switch err := t.client.Get(ctx, types.NamespacedName{Name: name}, c); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("cannot look for GatewayClass %q: %w", name, err)
	case string(c.Spec.ControllerName) != owner:
		return fmt.Errorf("cannot have GatewayClass %q made, since there is one whose controllerName is %q and not %q, which can't be changed: `kubectl delete gatewayclass %s`, after which it is made anew within half a minute, or set gatewayClass.name of the chart to another name", name, c.Spec.ControllerName, owner, name)
	default:
		return nil
	}
	what := "Gateways of InferenceGatewayConfigs, run by Envoy Gateway."
	c = &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{translate.LabelManagedBy: translate.ManagedBy}},
		Spec: gatewayv1.GatewayClassSpec{ControllerName: gatewayv1.GatewayController(owner), Description: &what}}
	if err := t.client.Create(ctx, c); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cannot make GatewayClass %q: %w", name, err)
	}
	t.log.Info("the GatewayClass is made", "class", name, "controllerName", owner)
	return nil
}
