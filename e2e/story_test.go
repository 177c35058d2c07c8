//go:build (doors || vllm) && unix

package e2e

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"
)

// event is one line of client.py; which fields are set depends on the command.
type event struct {
	Event    string  `json:"event"`   // start, headers, first or end
	Call     string  `json:"call"`    // what was called, for `calls`
	N        int     `json:"n"`       // number of the request
	Stream   bool    `json:"stream"`  // whether it asked for a stream
	Outcome  string  `json:"outcome"` // of an end: see tally
	Chunks   int     `json:"chunks"`
	Tokens   int     `json:"tokens"`
	Endpoint string  `json:"endpoint"` // that the gateway says it sent the request to
	Seconds  float64 `json:"seconds"`

	Text      string   `json:"text"`
	Finish    string   `json:"finish"`
	RequestID string   `json:"request_id"`
	Vectors   int      `json:"vectors"`
	Width     int      `json:"width"`
	Models    []string `json:"models"`
	Last      string   `json:"last"`

	Error   string `json:"error"` // class of the client's exception
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Type    string `json:"type"`
	Message string `json:"message"`

	RetryAfter string `json:"retry_after"` // the header of a refusal

	Kind         string `json:"kind"` // of prompt, for `exact`
	PromptTokens int    `json:"prompt_tokens"`
	CachedTokens int    `json:"cached_tokens"` // that the engine says it found in its cache
}

// story is a running client.py and what it has told.
type story struct {
	*process
	t *testing.T
}

func startClient(t *testing.T, command, url string, args ...string) *story {
	t.Helper()
	args = append([]string{"client.py", command, url}, args...)
	return &story{process: start(t, "client "+command, os.Getenv(pythonVariable), args...), t: t}
}

// events returns what was told so far.
func (s *story) events() []event {
	s.t.Helper()
	var all []event
	for _, line := range s.stdout.since(0) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			s.t.Fatalf("cannot read the client's line %q: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// wait waits until holds is true of what was told.
func (s *story) wait(what string, within time.Duration, holds func([]event) bool) []event {
	s.t.Helper()
	var all []event
	eventually(s.t, what, within, func() bool {
		ended := !s.running()
		all = s.events()
		if holds(all) {
			return true
		}
		if ended {
			s.t.Fatalf("the client ended before %s: %v\n%+v\n%s", what, s.err, tally(all), s.tail(20))
		}
		return false
	})
	return all
}

// waitEnds waits until n more requests than in the events before have ended well.
func (s *story) waitEnds(before []event, n int, within time.Duration) []event {
	s.t.Helper()
	want := tally(before).OK + n
	return s.wait("more requests to end well", within, func(all []event) bool { return tally(all).OK >= want })
}

// finish lets a client that goes on until told otherwise end, waits for it and
// returns all that was told.
func (s *story) finish(within time.Duration) []event {
	s.t.Helper()
	s.stdin.Close()
	if code := s.exitCode(s.t, within); code != 0 {
		s.t.Fatalf("got exit code %d of the client, want 0:\n%s", code, s.tail(20))
	}
	return s.events()
}

// counts says how many requests ended how.
type counts struct {
	OK     int // whole
	Broken int // a stream that had begun and ended with an error event
	Cut    int // a stream that had begun and ended without a word: never right
	Failed int // no byte of an answer had come
}

func tally(events []event) counts {
	var c counts
	for _, e := range events {
		switch e.Outcome {
		case "ok":
			c.OK++
		case "broken":
			c.Broken++
		case "cut":
			c.Cut++
		case "failed":
			c.Failed++
		}
	}
	return c
}

// wantNoneLost fails the test for each request that failed before its first byte
// or ended without a word.
func wantNoneLost(t *testing.T, events []event) {
	t.Helper()
	shown := 0
	for _, e := range events {
		if e.Outcome != "failed" && e.Outcome != "cut" {
			continue
		}
		if shown++; shown <= 5 {
			t.Errorf("request %d (stream %v) %s after %d chunks and %.2f s: got %s %d %s: %s, want an answer", e.N, e.Stream, e.Outcome, e.Chunks, e.Seconds, e.Error, e.Status, e.Code, e.Message)
		}
	}
	if shown > 5 {
		t.Errorf("and %d more requests failed or were cut", shown-5)
	}
}

// unanswered returns the numbers of the requests that were started and have not
// got a byte of an answer, be it one of the events named here that came: headers
// before a byte.
func unanswered(events []event, either ...string) []int {
	open := map[int]bool{}
	for _, e := range events {
		switch {
		case e.Event == "start":
			open[e.N] = true
		case e.Event == "first" || e.Event == "end" || slices.Contains(either, e.Event):
			delete(open, e.N)
		}
	}
	var numbers []int
	for n := range open {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	return numbers
}
