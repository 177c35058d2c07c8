// Package extproc is the front door for Envoy: the gRPC service by which Envoy asks where each request goes
// (envoy.service.ext_proc.v3.ExternalProcessor), and the health service beside it.
//
// It promises that a request is understood, refused and counted as in the embedded front door, that its body passes
// through unchanged and uncopied, and that every counter that it raised comes down again when Envoy ends its stream,
// however that comes about. It names only endpoints of a pool.
//
// It refuses to see the pieces of answers unless asked to: each costs more than it does to choose an endpoint.
package extproc
