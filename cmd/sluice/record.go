package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/route"
)

// recorder keeps the last decisions for explanations, and writes a sample of them to a file. Its methods may be called
// by any goroutine.
type recorder struct {
	mu   sync.Mutex
	ring []*route.Record
	next int
	// tokens bounds how many requests a second are copied for the ring alone.
	tokens float64
	filled time.Time

	file   *os.File
	share  float64
	lines  chan *route.Record // nil without a file, and once closed
	done   chan struct{}
	missed int
	log    *slog.Logger
}

const (
	// ringSize and ringRate say how many decisions explain can look back on, and how many requests a second are copied for it at most: a copy
	// costs more than a decision.
	ringSize = 256
	ringRate = 20
	// fileBuffer is how many records may wait for the disk before some are left out.
	fileBuffer = 1024
)

// newRecorder opens the file for appending, if there is one; share is the share of requests whose decisions are written to it, 0..1.
func newRecorder(path string, share float64, log *slog.Logger) (*recorder, error) {
	r := &recorder{ring: make([]*route.Record, ringSize), share: share, log: log, done: make(chan struct{})}
	if path == "" {
		close(r.done)
		return r, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot record decisions: %w", err)
	}
	r.file, r.lines = f, make(chan *route.Record, fileBuffer)
	go r.write(r.lines)
	return r, nil
}

// forFile reports whether a request's decisions go to the file. It goes by the request's id, so that all decisions of one request, which
// may move, go the same way, and any share is a fair sample.
func (r *recorder) forFile(id string) bool {
	return r.lines != nil && float64(route.HashName(id)>>11)/(1<<53) < r.share
}

// wants reports whether the decisions of the request should be copied.
func (r *recorder) wants(id string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.forFile(id) {
		return true
	}
	r.tokens = min(r.tokens+ringRate*now.Sub(r.filled).Seconds(), ringRate)
	r.filled = now
	if r.tokens < 1 {
		return false
	}
	r.tokens--
	return true
}

// add takes a record of a request that wants asked for.
func (r *recorder) add(rec *route.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.next%ringSize] = rec
	r.next++
	if !r.forFile(rec.ID) {
		return
	}
	select {
	case r.lines <- rec:
	default:
		r.missed++
	}
}

// last gives the latest n records, newest first.
func (r *recorder) last(n int) []*route.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*route.Record
	for i := r.next - 1; i >= 0 && i > r.next-1-ringSize && len(out) < n; i-- {
		out = append(out, r.ring[i%ringSize])
	}
	return out
}

// write takes records to the file until lines is closed.
func (r *recorder) write(lines <-chan *route.Record) {
	defer close(r.done)
	w := bufio.NewWriterSize(r.file, 1<<16)
	enc := json.NewEncoder(w)
	failed := false
	for rec := range lines {
		err := enc.Encode(rec)
		if len(lines) == 0 && err == nil {
			err = w.Flush()
		}
		if err != nil && !failed {
			failed = true
			r.log.Error("cannot record decisions any more", "file", r.file.Name(), "error", err)
		}
	}
	if err := w.Flush(); err != nil && !failed {
		r.log.Error("cannot record the last decisions", "file", r.file.Name(), "error", err)
	}
}

// close writes out what waits. Records added later are kept for explanations alone: a request that was cut at the end of a drain may
// still decide.
func (r *recorder) close() {
	r.mu.Lock()
	lines := r.lines
	r.lines = nil
	missed := r.missed
	r.mu.Unlock()
	if lines == nil {
		return
	}
	close(lines)
	<-r.done
	if missed > 0 {
		r.log.Warn("decisions were left out of the record because the disk was too slow", "count", missed)
	}
	if err := r.file.Close(); err != nil {
		r.log.Error("cannot close the record", "error", err)
	}
}
