// Package envoy is Envoy's configuration, made from a gateway's: the bootstrap that makes any Envoy the front door of this
// gateway, with its picker asked about each request, and the discovery service that tells running Envoys of endpoints
// that come and go.
//
// It promises that an address outside a pool is never dialled, whatever a header says; that what a client says of routing
// is gone before anything can fail open; that everything Envoy answers by itself has the form of the gateway's own
// errors; and that equal options make equal bytes.
//
// It refuses to start, watch or download an Envoy, and to read a certificate or a key: Envoy reads those itself.
package envoy
