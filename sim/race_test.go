//go:build race

package sim

// underRace says that the race detector is on, which makes everything ten times as slow.
const underRace = true
