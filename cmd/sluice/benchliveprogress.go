package main

import (
	"fmt"
	"sync"
	"time"
)

// liveProgress tells how far a comparison at real servers is, which takes as long as it says beforehand, and what answers take at the ends of runs.
type liveProgress struct {
	of     int           // runs
	length time.Duration // of each, until the last arrival
	began  time.Time

	mu     sync.Mutex // guards what is below
	run    int        // which is under way, from 1; 0 before the first
	target string
	since  time.Time
}

// begin says that the next run begins.
func (p *liveProgress) begin(target string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run++
	p.target, p.since = target, now
}

// words are the progress in words.
func (p *liveProgress) words(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == 0 {
		return fmt.Sprintf("run 1 of %d is about to begin", p.of)
	}
	each := p.length
	if before := p.run - 1; before > 0 { // with the ends of those so far
		each = max(each, p.since.Sub(p.began)/time.Duration(before))
	}
	in := now.Sub(p.since)
	text := fmt.Sprintf("run %d of %d, at %s, for %v", p.run, p.of, p.target, in.Round(time.Second))
	if more := time.Duration(p.of-p.run)*each + max(each-in, 0); more >= time.Second {
		return text + fmt.Sprintf(", about %v more", more.Round(time.Second))
	}
	return text + ", waiting for the last answers"
}
