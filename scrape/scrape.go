// Package scrape asks model servers how they are: it reads their metrics pages into fleet.Readings, finds out by asking
// which engine they run and which models and adapters they list, and tells the fleet when one can't be reached.
//
// It promises that one slow endpoint delays no other, that a page costs no garbage once its endpoint is known, that a
// value it can't believe is as good as absent, and that whatever routing could use and an engine doesn't say is
// reported by name. What an engine calls things is a row of one table, dialects; nothing else knows a metric's name.
//
// It refuses to follow redirects, to retry within a tick, and to conclude from a slow answer that an endpoint is dead:
// a busy engine answers late.
package scrape

import (
	"errors"
	"fmt"
	"time"
)

// Defaults and bounds.
const (
	// DefaultInterval is the time between two scrapes of one endpoint. A Python metrics registry takes some 6 ms to
	// render a page, so 200 ms costs each model server 3 % of a core, and 50 ms would cost 11 %; where the samples that are read
	// can be asked for alone (vLLM), it is a tenth of that.
	DefaultInterval = 200 * time.Millisecond
	// DefaultAskInterval is the time between two looks at what an endpoint lists.
	DefaultAskInterval = 5 * time.Second
	// staleFactor is how many scrapes must fit into the age at which a reading is stale, so that one lost scrape is
	// harmless.
	staleFactor = 3
	// maxPage and maxModels bound what is read of an answer.
	maxPage, maxModels = 8 << 20, 4 << 20
)

var errIntervals = errors.New("readings would be stale before the next ones arrive")

// CheckIntervals reports an error if readings taken every interval could be older than staleAfter with only two of them
// lost.
func CheckIntervals(interval, staleAfter time.Duration) error {
	if staleAfter >= staleFactor*interval {
		return nil
	}
	return fmt.Errorf("cannot scrape every %v where a reading is stale after %v: %w; scrape at least every %v or let readings be stale after %v or more",
		interval, staleAfter, errIntervals, staleAfter/staleFactor, staleFactor*interval)
}
