package kube

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/sluice-gateway/sluice/translate"
)

// world is what the cluster has of everything that routes to InferencePools depend on. Nothing in it is written to.
type world struct {
	pools    []*poolv1.InferencePool
	routes   []*gatewayv1.HTTPRoute
	grants   []*gatewayv1beta1.ReferenceGrant
	pods     map[string][]*corev1.Pod // by namespace
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName][]*discoveryv1.EndpointSlice // by their Service
	gateways map[types.NamespacedName]*gatewayv1.Gateway
	classes  map[string]*gatewayv1.GatewayClass
}

// nameOf is an object's full name.
func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// poolOf is the pool that a backend of a route in a namespace means, if it means one.
func poolOf(ref *gatewayv1.BackendObjectReference, namespace string) (types.NamespacedName, bool) {
	if ref.Group == nil || *ref.Group != poolv1.GroupName || ref.Kind == nil || *ref.Kind != "InferencePool" {
		return types.NamespacedName{}, false
	}
	if ref.Namespace != nil {
		namespace = string(*ref.Namespace)
	}
	return types.NamespacedName{Namespace: namespace, Name: string(ref.Name)}, true
}

// poolsOf are the pools that a route sends anything to.
func poolsOf(route *gatewayv1.HTTPRoute) map[types.NamespacedName]bool {
	pools := make(map[types.NamespacedName]bool)
	for i := range route.Spec.Rules {
		for j := range route.Spec.Rules[i].BackendRefs {
			ref := &route.Spec.Rules[i].BackendRefs[j]
			if pool, ok := poolOf(&ref.BackendObjectReference, route.Namespace); ok && (ref.Weight == nil || *ref.Weight > 0) {
				pools[pool] = true
			}
		}
	}
	return pools
}

// granted reports whether routes of a namespace may send to a pool: those of its own, and those that its owner grants it.
func granted(from string, pool types.NamespacedName, grants []*gatewayv1beta1.ReferenceGrant) bool {
	if from == pool.Namespace {
		return true
	}
	return slices.ContainsFunc(grants, func(g *gatewayv1beta1.ReferenceGrant) bool {
		return g.Namespace == pool.Namespace &&
			slices.ContainsFunc(g.Spec.From, func(f gatewayv1beta1.ReferenceGrantFrom) bool {
				return f.Group == gatewayv1.GroupName && f.Kind == "HTTPRoute" && string(f.Namespace) == from
			}) &&
			slices.ContainsFunc(g.Spec.To, func(t gatewayv1beta1.ReferenceGrantTo) bool {
				return t.Group == poolv1.GroupName && t.Kind == "InferencePool" && (t.Name == nil || string(*t.Name) == pool.Name)
			})
	})
}

// membersOf are the addresses of a pool: each port of each pod that is ready and stays, and those of Endpoints documents, in
// order.
func membersOf(pool *poolv1.InferencePool, pods []*corev1.Pod) ([]string, error) {
	selector, err := selectorOf(pool)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, p := range pods {
		if !selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		pod, ready := podOf(p)
		if !ready || pod.Ending {
			continue
		}
		for _, port := range pool.Spec.TargetPorts {
			list = append(list, net.JoinHostPort(pod.Address, strconv.Itoa(int(port.Number))))
		}
	}
	if pool.Labels[translate.LabelManagedBy] == translate.ManagedBy { // our own plan had entries of Endpoints documents for it
		list = append(list, strings.Fields(pool.Annotations[translate.AnnotationAddresses])...)
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// selectorOf is what a pool selects its pods by: the whole selector where our own plan had to write it into an annotation.
func selectorOf(pool *poolv1.InferencePool) (labels.Selector, error) {
	if text := pool.Annotations[translate.AnnotationSelector]; text != "" {
		selector, err := labels.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("cannot use the annotation %s of InferencePool %s: %w", translate.AnnotationSelector, nameOf(pool), err)
		}
		return selector, nil
	}
	set := make(labels.Set)
	for key, value := range pool.Spec.Selector.MatchLabels {
		set[string(key)] = string(value)
	}
	if len(set) == 0 {
		return labels.Nothing(), nil // everything in the namespace is nobody's pool
	}
	return set.AsSelector(), nil
}

// defaultPickerPort is the port of a picker that names none.
const defaultPickerPort = 9002

func pickerPort(ref *poolv1.EndpointPickerRef) int32 {
	if ref.Port == nil {
		return defaultPickerPort
	}
	return int32(ref.Port.Number)
}

// plainText is the appProtocol of a picker's port that takes HTTP/2 without TLS. Pickers serve TLS, with a certificate of
// their own making, unless told otherwise; "http2" stands beside those, too.
const plainText = "kubernetes.io/h2c"

// pickers are those that a pool names.
type pickers struct {
	addresses []string // of those that are ready
	plain     bool     // no TLS
}

// pickersOf resolves a pool's pickers. The error says to the pool's owner why nobody can be asked; a pool that names none has
// neither.
func pickersOf(pool *poolv1.InferencePool, w *world) (*pickers, error) {
	ref := pool.Spec.EndpointPickerRef
	if ref == nil {
		return nil, nil
	}
	if ref.Kind != "" && ref.Kind != "Service" || ref.Group != nil && *ref.Group != "" {
		return nil, fmt.Errorf("spec.endpointPickerRef: a picker is a Service, and %s is none", ref.Kind)
	}
	name := types.NamespacedName{Namespace: pool.Namespace, Name: string(ref.Name)}
	service := w.services[name]
	if service == nil {
		return nil, fmt.Errorf("spec.endpointPickerRef: there is no Service %q in namespace %q: create it, or name another", name.Name, name.Namespace)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, fmt.Errorf("spec.endpointPickerRef: Service %q is an ExternalName, which may lead anywhere: name one with endpoints of this cluster", name.Name)
	}
	number := pickerPort(ref)
	at := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == number })
	if at < 0 {
		return nil, fmt.Errorf("spec.endpointPickerRef: Service %q has no port %d", name.Name, number)
	}
	port := &service.Spec.Ports[at]
	p := &pickers{plain: port.AppProtocol != nil && *port.AppProtocol == plainText}
	for _, s := range w.slices[name] {
		p.addresses = append(p.addresses, readyIn(s, port.Name)...)
	}
	slices.Sort(p.addresses)
	p.addresses = slices.Compact(p.addresses)
	return p, nil
}

// readyIn are the addresses of a slice that take requests, at the port of that name.
func readyIn(s *discoveryv1.EndpointSlice, port string) []string {
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	at := slices.IndexFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
		return p.Port != nil && (p.Name == nil && port == "" || p.Name != nil && *p.Name == port)
	})
	if at < 0 {
		return nil
	}
	var list []string
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		for _, address := range e.Addresses {
			list = append(list, net.JoinHostPort(address, strconv.Itoa(int(*s.Ports[at].Port))))
		}
	}
	return list
}
