//go:build kube

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
	"github.com/sluice-gateway/sluice/translate"
)

// The GatewayClass is made where there is none, and one of somebody else's stays: a gateway's condition says what to do, and once
// that is done the class is made.
func (g *stage) keepsAClass() {
	t := g.t
	class := func(name string) (*gatewayv1.GatewayClass, error) {
		c := new(gatewayv1.GatewayClass)
		return c, g.there(c, "", name)
	}
	g.play(script{settings: func(s *translate.Settings) { s.GatewayClass = "fresh" }, classOwner: "example.com/ours"})
	g.eventually("the class is made", func() error { _, err := class("fresh"); return err })
	made, err := class("fresh")
	need(t, err)
	if made.Spec.ControllerName != "example.com/ours" || made.Labels[translate.LabelManagedBy] != translate.ManagedBy {
		t.Errorf("got %+v, want ours", made)
	}
	g.stop()

	need(t, g.server.client.Create(t.Context(), &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "strange"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: "example.com/theirs"}}))
	g.play(script{settings: func(s *translate.Settings) { s.GatewayClass = "strange" }, classOwner: "example.com/ours"})
	g.eventually("it says whose it is", func() error {
		if text := g.log.String(); !strings.Contains(text, `whose controllerName is \"example.com/theirs\"`) {
			return fmt.Errorf("got %s", text)
		}
		return nil
	})
	c, err := class("strange")
	if err != nil || c.Spec.ControllerName != "example.com/theirs" {
		t.Errorf("got %v, %v, want it as it was", c.Spec, err)
	}
	g.gateway("gw", "", "llama")
	g.says("gw", v1alpha1.ConditionGatewayProgrammed, metav1.ConditionFalse, "NotProgrammed", "`kubectl delete gatewayclass strange`, after which it is made anew")
	g.findsAStrangeClass()
	need(t, g.server.client.Delete(t.Context(), c))
	g.says("gw", v1alpha1.ConditionGatewayProgrammed, metav1.ConditionFalse, "NotProgrammed", "nobody has taken it")
	if c, err := class("strange"); err != nil || c.Spec.ControllerName != "example.com/ours" {
		t.Errorf("got %v, %v, want ours", c.Spec, err)
	}

	var looks atomic.Int32
	away := func(r *http.Request) error {
		if strings.Contains(r.URL.Path, "/gatewayclasses") {
			looks.Add(1)
			return errors.New("nobody answers")
		}
		return nil
	}
	g.calls.stand.Store(&away)
	g.removed("gw") // which has kinds looked at, and the class
	g.eventually("the class is looked at again, twice", func() error {
		if n := looks.Load(); n < 2 {
			return fmt.Errorf("it was looked at %d times", n)
		}
		return nil
	})
	if text := g.log.String(); strings.Contains(text, "nobody answers") {
		t.Errorf("got %s, want nothing of the class where the API server is away", text)
	}
	g.calls.stand.Store(nil)
	g.stop()
}

// Doctor says what to do about a class of somebody else's: what the chart says of its controllerName has no effect on it.
func (g *stage) findsAStrangeClass() {
	g.t.Helper()
	place := func(doc string) {
		u := g.document(doc)
		g.t.Cleanup(func() { need(g.t, g.server.client.Delete(context.WithoutCancel(g.t.Context()), u)) })
	}
	for name, labels := range map[string]string{translate.Controller: "app.kubernetes.io/name: sluice", "envoy-gateway": "control-plane: envoy-gateway"} {
		place("{apiVersion: apps/v1, kind: Deployment, metadata: {name: " + name + ", labels: {" + labels + "}}, spec: {selector: {matchLabels: {" + labels + "}}, template: {metadata: {labels: {" + labels +
			"}}, spec: {containers: [{name: c, image: i, args: [control, --gateway-class=strange, --gateway-class-controller=example.com/ours]}]}}}}")
	}
	place(`{apiVersion: v1, kind: ConfigMap, metadata: {name: envoy-gateway-config}, data: {envoy-gateway.yaml: "gateway: {controllerName: example.com/ours}"}}`)
	found := g.examined()
	for what, begin := range map[string]string{"GatewayClass": "nobody has accepted strange: its controllerName is example.com/theirs; ",
		"Envoy Gateway": "none calls itself example.com/theirs, which is the controllerName of GatewayClass strange: "} {
		want := Finding{LevelFail, what, begin + "it is somebody else's, since our chart says example.com/ours, which can't be written into a class that is there: kubectl delete gatewayclass strange, after which the controller makes it anew within half a minute, or, if others need it, set gatewayClass.name to another name"}
		if !slices.Contains(found, want) {
			g.t.Errorf("got %+v, want %+v", found, want)
		}
	}
}
