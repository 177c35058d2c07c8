package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/translate"
)

// classKind is the kind of what Gateways are of.
func classKind() kind { return of(groupGateway, "v1", "GatewayClass", "gatewayclasses") }

// class is what is known of the GatewayClass.
type class struct {
	there bool
	said  string // what was said to be wrong with it
}

// keepClass has the GatewayClass made where it is not known to be there, or the kinds have changed.
func (t *turn) keepClass(ctx context.Context, changed bool) {
	if t.class.there && !changed {
		return
	}
	there, err := t.makeClass(ctx)
	t.class.there = there
	if err != nil && ctx.Err() == nil && err.Error() != t.class.said {
		t.class.said = err.Error()
		t.log.Error("the GatewayClass is not what it should be", "error", err)
	}
}

// makeClass makes the GatewayClass where there is none, as soon as the API server knows the kind, and reports whether there
// is one. One that is there stays as it is, whosever it is, and nothing ever deletes it: Envoy Gateway ends all Envoys of a
// class that goes, and a chart that made it would take it along.
func (t *turn) makeClass(ctx context.Context) (there bool, err error) {
	name, owner := t.options.Settings.GatewayClass, t.options.ClassOwner
	if owner == "" || !t.definitions.knows(classKind()) {
		return owner == "", nil
	}
	c := new(gatewayv1.GatewayClass)
	switch err := t.client.Get(ctx, types.NamespacedName{Name: name}, c); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return false, fmt.Errorf("cannot look for GatewayClass %q: %w", name, err)
	case string(c.Spec.ControllerName) != owner:
		return true, fmt.Errorf("cannot have GatewayClass %q made, since there is one whose controllerName is %q and not %q, which can't be changed: delete it, or choose another name", name, c.Spec.ControllerName, owner)
	default:
		return true, nil
	}
	what := "Gateways of InferenceGatewayConfigs, run by Envoy Gateway."
	c = &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{translate.LabelManagedBy: translate.ManagedBy}},
		Spec: gatewayv1.GatewayClassSpec{ControllerName: gatewayv1.GatewayController(owner), Description: &what}}
	if err := t.client.Create(ctx, c); err != nil && !apierrors.IsAlreadyExists(err) {
		return false, fmt.Errorf("cannot make GatewayClass %q: %w", name, err)
	}
	t.log.Info("the GatewayClass is made", "class", name, "controllerName", owner)
	return true, nil
}
