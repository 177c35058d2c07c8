package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/front"
	"github.com/sluice-gateway/sluice/openai"
	"github.com/sluice-gateway/sluice/sim"
)

// The demo itself, for a few seconds: both sides answer, and the table says so.
func TestDemo(t *testing.T) {
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs([]string{"demo", "--for", "4s", "--scenario", "prefix", "--listen", "127.0.0.1:0"})
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		t.Fatalf("got %v, want a clean end; output:\n%s", err, out.String())
	}
	text := out.String()
	for _, want := range []string{"curl http://127.0.0.1:", "from openai import OpenAI", "sluice explain --admin 127.0.0.1:", "expected"} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	for _, name := range []string{"sluice", "round robin"} {
		row := regexp.MustCompile(`(?m)^`+name+` +\d[\d.]* m?s +\S+ \S+ +\S+ \S+ +0 +\d+ % +\d+ % +(\d+) +0 +(\d+) +\d+ +\d+$`).FindAllStringSubmatch(text, -1)
		if len(row) == 0 || row[len(row)-1][1] == "0" || row[len(row)-1][2] == "0" {
			t.Errorf("got rows %v of %s, want tokens and finished requests, and none failed; output:\n%s", row, name, text)
		}
	}
	if !strings.Contains(text, "Time to first token of round robin over sluice:") {
		t.Error("the output ends without a verdict")
	}
}

func TestDemoRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"known are mixed, unlabelled, bursty, prefix, uniform, lora, failure": {"demo", "--scenario", "nonsense"},
		"--for":                 {"demo", "--for", "-1s"},
		"takes --scenario NAME": {"demo", "mixed"},
	} {
		if out, err := try(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sluice %v: got %v (%s), want an error with %q", args, err, out, want)
		}
	}
}

// Requests that did not finish count: a waiting one with its age, a failed one as never.
func TestBoard(t *testing.T) {
	b, start := newBoard(), time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for i := range 5 {
		b.sent(i, at(0))
	}
	usage := openai.Usage{PromptTokens: 100, CachedTokens: 25, OutputTokens: 40, Seen: true}
	b.first(0, at(.1))
	b.end(sim.Played{Index: 0, Usage: usage}, at(1))
	b.first(1, at(.2))
	b.end(sim.Played{Index: 1, Usage: usage, Err: errors.New("broken off")}, at(1))
	b.first(2, at(.3))
	b.end(sim.Played{Index: 3, Err: errors.New("status 502")}, at(1))
	b.end(sim.Played{Index: 2, Err: context.DeadlineExceeded}, at(1))
	b.tokens(30, at(1.5))
	b.tokens(10, at(2.5))
	b.tokens(50, at(4.5)) // in the second that has only begun
	b.asked(front.Ended{PromptTokens: 200, ExpectedTokens: 60})
	got := b.summary(start, at(5), false)
	want := summary{p50: .3, p95: math.Inf(1), p99: math.Inf(1), lately50: .3, lately95: math.Inf(1), expected: .3, tokensPerSecond: 18, hits: .25, done: 1, running: 2, waiting: 1, failed: 1, broken: 1}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := b.summary(start, at(7), false); got.tokensPerSecond != 12 {
		t.Errorf("got %v tokens a second, want those of the last five seconds", got.tokensPerSecond)
	}
	if got := b.summary(start, at(10.5), false); !math.IsInf(got.lately50, 1) || got.p50 != .3 {
		t.Errorf("got a P50 of %v in the last ten seconds and a P50 of %v since the start, want that of one that waits and one that failed, and .3", got.lately50, got.p50)
	}
	if got = b.summary(start, at(9), true); got.tokensPerSecond != 10 {
		t.Errorf("got %v tokens a second at the end, want them over the whole time", got.tokensPerSecond)
	}
	both := []summary{got, {p50: math.NaN(), hits: math.NaN()}}
	for _, line := range table([]string{"a", "bb"}, both, 60, false) {
		if n := len([]rune(line)); n >= 60 || n < 40 {
			t.Errorf("got a line of %d characters, want as many columns as fit 60: %q", n, line)
		}
	}
	lines := table([]string{"a", "bb"}, both, 0, true)
	if len(lines) != 3 || !strings.Contains(lines[1], "300 ms") || !strings.Contains(lines[1], "never") || !strings.Contains(lines[2], "-") {
		t.Errorf("got table\n%s", strings.Join(lines, "\n"))
	}
}
