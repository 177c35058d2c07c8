// Package sim is model servers that need no GPU: a model of an inference engine, and a world of such engines in made-up
// time in which the gateway's own fleet and route decide.
//
// An Engine knows no clock: its owner says what time it is, so that a discrete-event World and a server in real time
// drive the same one. A World is deterministic: the same options and seed give the same result, to the last digit.
//
// It promises the mechanisms that routing depends on (continuous batching, chunked prefill, a block cache that is
// reused before it is forgotten, preemption, adapters) with step times fitted to measurements. It refuses to be a
// performance model of any one engine version: docs/simulator.md says how far each row is from what was measured, and
// which rows are derived.
package sim
