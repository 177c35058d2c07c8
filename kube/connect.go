package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Connect says how the API server is reached. It asks it nothing. kubeconfig is a file; without one those of $KUBECONFIG
// count, then ~/.kube/config, then what a pod is given of its cluster.
func Connect(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, new(clientcmd.ConfigOverrides)).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot find an API server (run in a pod that has its service account's token, or name a file with --kubeconfig or $KUBECONFIG): %w", err)
	}
	c.UserAgent = "sluice"
	return c, nil
}

// core is a client for the few kinds of the core group that are read here. One for every kind there is takes several
// megabytes of each process.
func core(c *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("cannot read core kinds: %w", err)
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	own := rest.CopyConfig(c)
	own.APIPath, own.GroupVersion = "/api", &corev1.SchemeGroupVersion
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	own.QPS = -1 // a few long requests need no pacing
	own.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the API server %s: %w", c.Host, err)
	}
	return client, nil
}
