package kube

import (
	"fmt"
	"log/slog"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// What it takes to say what a hundred routes to a hundred pools mean, without reading them.
func BenchmarkTranslation(b *testing.B) {
	table := &routev3.RouteConfiguration{Name: "models/gw/http", VirtualHosts: []*routev3.VirtualHost{{Name: "x", Domains: []string{"*"}}}}
	q := &translateRequest{Routes: []*routev3.RouteConfiguration{table}}
	group, kind := gatewayv1.Group(poolv1.GroupName), gatewayv1.Kind("InferencePool")
	routes := make(map[types.NamespacedName]*gatewayv1.HTTPRoute)
	for i := range 100 {
		name := fmt.Sprintf("llama-%d", i)
		rule := ruleName{types.NamespacedName{Namespace: "models", Name: name}, 0}
		r := &routev3.Route{Name: rule.cluster() + "/match/0/*", Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: rule.cluster()}}}}
		if err := stamp(r, []*use{{Namespace: "models", Name: name, Picker: name + "-epp.models.svc:9002"}}); err != nil {
			b.Fatal(err)
		}
		table.VirtualHosts[0].Routes = append(table.VirtualHosts[0].Routes, r)
		q.Clusters = append(q.Clusters, &clusterv3.Cluster{Name: rule.cluster()})
		routes[rule.route] = &gatewayv1.HTTPRoute{Spec: gatewayv1.HTTPRouteSpec{Rules: []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{
			BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{Group: &group, Kind: &kind, Name: gatewayv1.ObjectName(name)}}}}}}}}
	}
	size := 0
	for b.Loop() {
		b.StopTimer()
		one := &translateRequest{Routes: []*routev3.RouteConfiguration{proto.Clone(table).(*routev3.RouteConfiguration)}, Listeners: []*listenerv3.Listener{}}
		for _, c := range q.Clusters {
			one.Clusters = append(one.Clusters, proto.Clone(c).(*clusterv3.Cluster))
		}
		b.StartTimer()
		a, err := (&translation{routes: routes, source: endpointSource("dns:///x:1", make([]byte, 700))}).run(one)
		if err != nil {
			b.Fatal(err)
		}
		size = 0
		for _, c := range a.Clusters {
			size += proto.Size(c)
		}
		size += proto.Size(a.Routes[0])
	}
	b.ReportMetric(float64(size), "bytes")
}

// What it takes to look at a hundred pools of a thousand pods in one namespace, when one pod has gone.
func BenchmarkPublish(b *testing.B) {
	w := &world{pods: make(map[string][]*corev1.Pod)}
	for i := range 100 {
		p := &poolv1.InferencePool{Spec: poolv1.InferencePoolSpec{TargetPorts: []poolv1.Port{{Number: 8000}}}}
		p.Namespace, p.Name = "models", fmt.Sprint("pool-", i)
		p.Spec.Selector.MatchLabels = map[poolv1.LabelKey]poolv1.LabelValue{"app": poolv1.LabelValue(p.Name)}
		w.pools = append(w.pools, p)
		for j := range 10 {
			pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.0.%d.%d", i, j), Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
			pod.Labels = map[string]string{"app": p.Name}
			w.pods["models"] = append(w.pods["models"], pod)
		}
	}
	e := newEndpoints(slog.New(slog.DiscardHandler))
	all := w.pods["models"]
	for i := 0; b.Loop(); i++ {
		w.pods["models"] = all[i%2:]
		if err := e.publish(w); err != nil {
			b.Fatal(err)
		}
	}
}
