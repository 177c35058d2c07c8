// Package kube is the only room that talks to an API server. A Reader tells a gateway's process which pods there are and
// what its documents say now; an Extension lets routes send to InferencePools behind Envoy Gateway; a Cluster looks into one,
// once, for people.
//
// It promises that what is known stays known: an API server that is gone, slow, or refuses takes nothing out of traffic and
// ends no process; that nothing is taken for absent because it could not be read; and that a missing right is said once, with
// the verb, the resource, the namespace and the rule that gives it.
//
// It refuses to decide what documents mean: that is for config and translate, which it hands what there is.
package kube
