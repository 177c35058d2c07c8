// Package apiserver holds the custom resource definitions in deploy/crds against a real API server: every rule,
// default and message, what two writers of one object do to each other, what kubectl prints, that an API server and
// package config say the same of the same document, that a gateway follows pods there, and what the chart installs. The tests
// have the tag kube and need etcd, kube-apiserver, kubectl and helm, which make test-kube builds from Go modules.
package apiserver
