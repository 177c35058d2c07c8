package kube

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/sluice-gateway/sluice/config"
	"github.com/sluice-gateway/sluice/translate"
)

// slimMetadata keeps of who manages which field only whether we do.
func slimMetadata(o client.Object) {
	var ours []metav1.ManagedFieldsEntry
	for _, m := range o.GetManagedFields() {
		if m.Manager == fieldManager && m.Operation == metav1.ManagedFieldsOperationApply && m.Subresource == "" {
			ours = []metav1.ManagedFieldsEntry{{Manager: m.Manager, Operation: m.Operation}}
		}
	}
	o.SetManagedFields(ours)
}

// slimSpec leaves of an object of a plan its metadata and how it fares.
func slimSpec(o client.Object) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		o.Spec = appsv1.DeploymentSpec{Replicas: o.Spec.Replicas}
	case *gatewayv1.Gateway:
		o.Spec = gatewayv1.GatewaySpec{}
	case *gatewayv1.HTTPRoute:
		o.Spec = gatewayv1.HTTPRouteSpec{}
	case *unstructured.Unstructured:
		delete(o.Object, "spec")
	}
}

// slimService leaves of a Service its name and where it takes what.
func slimService(o client.Object) {
	if s, ok := o.(*corev1.Service); ok {
		s.ObjectMeta = metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, UID: s.UID, ResourceVersion: s.ResourceVersion}
		s.Spec, s.Status = corev1.ServiceSpec{Ports: s.Spec.Ports}, corev1.ServiceStatus{}
	}
}

// slimPod leaves of a pod what tells whether it serves, what it says of itself to this gateway and, of our own, where it is asked.
func slimPod(o client.Object) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	var spec corev1.PodSpec
	if port := askedAt(pod); port != 0 {
		spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: port}}}}
	}
	status := corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP}
	if podReady(pod) {
		status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	said := maps.Clone(pod.Annotations)
	maps.DeleteFunc(said, func(key, _ string) bool { return !config.Ours(key) })
	pod.ObjectMeta = metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels, Annotations: said, DeletionTimestamp: pod.DeletionTimestamp}
	pod.Spec, pod.Status = spec, status
}

// askedAt is the port where a pod of ours answers questions, 0 where it is none.
func askedAt(pod *corev1.Pod) int32 {
	if pod.Labels[translate.LabelManagedBy] != translate.ManagedBy {
		return 0
	}
	return adminPort(pod)
}

// isEnded reports whether a pod has done what it was for and runs no longer.
func isEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// samePod reports whether two readings of a pod mean the same for anyone here.
func samePod(before, after client.Object) bool {
	x, ok := before.(*corev1.Pod)
	y, too := after.(*corev1.Pod)
	return ok && too && x.UID == y.UID && x.Status.PodIP == y.Status.PodIP && podReady(x) == podReady(y) && isEnded(x) == isEnded(y) &&
		(x.DeletionTimestamp == nil) == (y.DeletionTimestamp == nil) && maps.Equal(x.Labels, y.Labels) && maps.Equal(x.Annotations, y.Annotations)
}
