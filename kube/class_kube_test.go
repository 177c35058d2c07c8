//go:build kube

package kube

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/translate"
)

// The GatewayClass is made where there is none, and one of somebody else's stays.
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
	if c, err := class("strange"); err != nil || c.Spec.ControllerName != "example.com/theirs" {
		t.Errorf("got %v, %v, want it as it was", c.Spec, err)
	}
	g.stop()
}
