package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GatewayPolicy is what a gateway is asked besides what InferenceGatewayConfig has fields for.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=gatewaypolicies,singular=gatewaypolicy,scope=Namespaced
type GatewayPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GatewayPolicySpec `json:"spec"`
}

// GatewayPolicySpec is what is asked, and of what.
type GatewayPolicySpec struct {
	// +required
	TargetRef PolicyTarget `json:"targetRef"`
	// SessionAffinity keeps a client's session at one endpoint while that is worth it. Absent: sessions are not told.
	// +optional
	SessionAffinity *SessionAffinity `json:"sessionAffinity,omitempty"`
}

// PolicyTarget names the InferenceGatewayConfig that a policy is for.
type PolicyTarget struct {
	// +optional
	// +kubebuilder:default=inference.sagemaker.aws.amazon.com
	// +kubebuilder:validation:Enum=inference.sagemaker.aws.amazon.com
	Group string `json:"group,omitempty"`
	// +optional
	// +kubebuilder:default=InferenceGatewayConfig
	// +kubebuilder:validation:Enum=InferenceGatewayConfig
	Kind string `json:"kind,omitempty"`
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// SectionName is the name of one scheduler; without it the policy is for all that have none of their own.
	// +optional
	SectionName string `json:"sectionName,omitempty"`
}

// SessionAffinity says how a session is told and what its endpoint is worth.
//
// +kubebuilder:validation:XValidation:rule="has(self.header) || has(self.cookie)",message="at least one of header or cookie must be set"
type SessionAffinity struct {
	// Header is a request header that holds the session's id; it wins over the cookie.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Header string `json:"header,omitempty"`
	// Cookie is a cookie that holds it. A request without gets one, unless it has the header.
	// +optional
	// +kubebuilder:validation:MaxLength=64
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
	// TTL is how long a session without requests is remembered.
	// +optional
	// +kubebuilder:default="10m"
	TTL *string `json:"ttl,omitempty"`
}
