package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// InferenceModelRewrite has requests go on under the names of other models: for aliases, for a canary's share, for tests of
// one against another. `apiVersion` is `llm-d.ai/v1alpha2`, or `inference.networking.x-k8s.io/v1alpha2`.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type InferenceModelRewrite struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec InferenceModelRewriteSpec `json:"spec"`
	// Status is written by a controller and ignored in documents.
	// +optional
	Status InferenceModelRewriteStatus `json:"status,omitempty,omitzero"`
}

// InferenceModelRewriteSpec is whose requests are rewritten, and how.
type InferenceModelRewriteSpec struct {
	// PoolRef names the pool whose requests the rules see.
	// +required
	PoolRef *PoolReference `json:"poolRef"`
	// Rules are tried in order. Of all documents for a pool, rules that match by name go before those that match all, then
	// those of the document with the oldest metadata.creationTimestamp, then those that stand first.
	// +required
	Rules []RewriteRule `json:"rules"`
}

// PoolReference names a pool: here, a scheduler.
type PoolReference struct {
	// +optional
	// +kubebuilder:default=inference.networking.k8s.io
	// +kubebuilder:validation:Enum=inference.networking.k8s.io;inference.networking.x-k8s.io
	Group string `json:"group,omitempty"`
	// +optional
	// +kubebuilder:default=InferencePool
	// +kubebuilder:validation:Enum=InferencePool
	Kind string `json:"kind,omitempty"`
	// Name is the name of a scheduler.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// RewriteRule is one rule.
type RewriteRule struct {
	// Matches are the requests that the rule is for, each that any of them matches. Absent: all of the pool.
	// +optional
	Matches []RewriteMatch `json:"matches,omitempty"`
	// Targets are the names that the requests go on under. Absent: their own.
	// +optional
	// +kubebuilder:validation:MinItems=1
	Targets []RewriteTarget `json:"targets,omitempty"`
}

// RewriteMatch is one way to match a request.
type RewriteMatch struct {
	// +required
	Model *ModelMatch `json:"model,omitempty"`
}

// ModelMatch matches the model that a request names.
type ModelMatch struct {
	// +optional
	// +kubebuilder:default=Exact
	// +kubebuilder:validation:Enum=Exact
	Type *string `json:"type,omitempty"`
	// Value is the whole name.
	// +required
	// +kubebuilder:validation:MinLength=1
	Value string `json:"value"`
}

// MatchExact is the type of match by the whole name.
const MatchExact = "Exact"

// RewriteTarget is one name, and its share of the requests.
type RewriteTarget struct {
	// Weight, over the sum of the rule's weights, is the share; equal shares where no target has one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Weight *int32 `json:"weight,omitempty"`
	// ModelRewrite is the name, of a model or of an adapter.
	// +required
	// +kubebuilder:validation:MinLength=1
	ModelRewrite string `json:"modelRewrite"`
}

// InferenceModelRewriteStatus is what a controller has to say of the document.
type InferenceModelRewriteStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
