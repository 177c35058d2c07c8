package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GatewayPolicy is what a gateway is asked besides what InferenceGatewayConfig has fields for.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=gatewaypolicies,singular=gatewaypolicy,shortName=gwp,categories=sluice,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="TARGET",type=string,JSONPath=`.spec.targetRef.name`,description="The InferenceGatewayConfig it is for."
// +kubebuilder:printcolumn:name="SECTION",type=string,JSONPath=`.spec.targetRef.sectionName`,description="The scheduler it is for, where it is not for all."
// +kubebuilder:printcolumn:name="ACCEPTED",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,description="Whether it is in force."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type GatewayPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what is asked, and of what.
	// +required
	Spec GatewayPolicySpec `json:"spec"`
	// Status is written by the controller and ignored in documents.
	// +optional
	Status GatewayPolicyStatus `json:"status,omitempty,omitzero"`
}

// GatewayPolicyList is what an API server returns for several.
//
// +kubebuilder:object:root=true
type GatewayPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GatewayPolicy `json:"items"`
}

// GatewayPolicyStatus is what the controller reports.
type GatewayPolicyStatus struct {
	// Conditions are Accepted alone: the policy has something to be for, and nothing older is for the same.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation that the conditions speak of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// GatewayPolicySpec is what is asked, and of what.
//
// +kubebuilder:validation:XValidation:rule="!has(self.topology) || !has(self.targetRef.sectionName) || size(self.targetRef.sectionName) == 0",message="is for a whole gateway: leave targetRef.sectionName out",fieldPath=".topology"
type GatewayPolicySpec struct {
	// TargetRef names what the policy is for.
	// +required
	TargetRef PolicyTarget `json:"targetRef"`
	// SessionAffinity keeps a client's session at one endpoint while that is worth it. Absent: sessions are not told.
	// +optional
	SessionAffinity *SessionAffinity `json:"sessionAffinity,omitempty"`
	// Topology says which pods a gateway consists of in a cluster: Fused where it is not set. Only for a whole gateway.
	// +optional
	Topology Topology `json:"topology,omitempty"`
}

// Topology is which pods a gateway consists of, and what each does.
// +kubebuilder:validation:Enum=Fused;Split;Embedded
type Topology string

// The topologies: one picker for all models, which finds model and endpoint in one pass; a body-based router and a picker
// for each scheduler, as the reference has it; our own proxy in Envoy's place.
const (
	TopologyFused    Topology = "Fused"
	TopologySplit    Topology = "Split"
	TopologyEmbedded Topology = "Embedded"
)

// TargetGroup is the group of what a policy is for.
// +kubebuilder:validation:Enum=inference.sagemaker.aws.amazon.com
type TargetGroup string

// TargetKind is the kind of what a policy is for.
// +kubebuilder:validation:Enum=InferenceGatewayConfig
type TargetKind string

// PolicyTarget names the InferenceGatewayConfig that a policy is for.
type PolicyTarget struct {
	// Group is the group of what it names.
	// +optional
	// +kubebuilder:default=inference.sagemaker.aws.amazon.com
	Group TargetGroup `json:"group,omitempty"`
	// Kind is the kind of what it names.
	// +optional
	// +kubebuilder:default=InferenceGatewayConfig
	Kind TargetKind `json:"kind,omitempty"`
	// Name is its name.
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// SectionName is the name of one scheduler; without it the policy is for all that have none of their own.
	// +optional
	SectionName string `json:"sectionName,omitempty"`
}

// SessionAffinity says how a session is told and what its endpoint is worth.
//
// +kubebuilder:validation:XValidation:rule="(has(self.header) && size(self.header) > 0) || (has(self.cookie) && size(self.cookie) > 0)",message="at least one of header or cookie must be set"
type SessionAffinity struct {
	// Header is a request header that holds the session's id; it wins over the cookie.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern="^[!#$%&'*+.^_`|~0-9A-Za-z-]*$"
	Header string `json:"header,omitempty"`
	// Cookie is a cookie that holds it. A request without gets one, unless it has the header.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern="^[!#$%&'*+.^_`|~0-9A-Za-z-]*$"
	Cookie string `json:"cookie,omitempty"`
	// CostMilliseconds is what leaving the session's endpoint costs where requests are routed by latency.
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600000
	CostMilliseconds *int32 `json:"costMilliseconds,omitempty"`
	// Weight is the scorer's where a scheduler has weights.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight *int32 `json:"weight,omitempty"`
	// TTL is how long a session without requests is remembered: above 0, in h, m, s and ms without fractions.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	// +kubebuilder:validation:XValidation:rule="self.matches('[1-9]')",message="must be a duration above 0 of h, m, s and ms without fractions, such as 10m"
	TTL *string `json:"ttl,omitempty"`
}
