package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AddToScheme makes the kinds of this package known to a scheme, so that clients can read and write them.
func AddToScheme(s *runtime.Scheme) error {
	inference := schema.GroupVersion{Group: InferenceGroup, Version: Version}
	gateway := schema.GroupVersion{Group: GatewayGroup, Version: Version}
	s.AddKnownTypes(inference, &InferenceGatewayConfig{}, &InferenceGatewayConfigList{})
	s.AddKnownTypes(gateway, &GatewayPolicy{}, &GatewayPolicyList{}, &Endpoints{}, &EndpointsList{}, &GlobalGateway{}, &GlobalGatewayList{})
	metav1.AddToGroupVersion(s, inference)
	metav1.AddToGroupVersion(s, gateway)
	return nil
}
