package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// InferenceObjective gives requests that name it a priority. `apiVersion` is `llm-d.ai/v1alpha2`, or
// `inference.networking.x-k8s.io/v1alpha2`. A request names it in the header `x-llm-d-inference-objective`, which only
// clients that are trusted may send.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type InferenceObjective struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec InferenceObjectiveSpec `json:"spec"`
	// Status is written by a controller and ignored in documents.
	// +optional
	Status InferenceObjectiveStatus `json:"status,omitempty,omitzero"`
}

// InferenceObjectiveSpec is how urgent requests are, and which.
type InferenceObjectiveSpec struct {
	// Priority is any whole number; requests with a higher one are more urgent. Without an objective it is 0.
	// +optional
	Priority *int64 `json:"priority,omitempty"`
	// PoolRef names the pool whose requests may name the objective.
	// +required
	PoolRef *PoolReference `json:"poolRef"`
}

// InferenceObjectiveStatus is what a controller has to say of the document.
type InferenceObjectiveStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
