// Package translate says what an InferenceGatewayConfig means in a Kubernetes cluster: the objects that make it true, and
// what to say of it in its status.
//
// It promises that a plan depends on nothing but the document and the Context beside it, and equal ones make equal plans;
// that everything a document asks for is either done or named in a condition with the way out; that an object which
// someone else owns is never planned over; and that readiness is never claimed of what nobody has seen.
//
// It refuses to talk to an API server, to look at a clock and to make keys: the room that does so hands in what there is,
// and carries the plan out.
package translate
