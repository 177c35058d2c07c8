// Package sim is model servers that need no GPU: a model of an inference engine, and a world of such engines in made-up time
// in which the gateway's own fleet and route decide.
//
// An Engine knows no clock: its owner says what time it is, so that a discrete-event World and a server in real time drive the
// same one. A World is deterministic: the same options and seed give the same result, to the last digit.
//
// It promises the mechanisms that routing depends on (continuous batching, chunked prefill, a block cache that is reused before
// it is forgotten, preemption, adapters) with step times fitted to measured tables. It refuses to be a performance
// model of any one engine version: the coefficients are good to a few per cent for dense models, to ±30 % where the table says derived.
package sim
