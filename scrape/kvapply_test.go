package scrape

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/prefix"
)

// block is an event of one stored block, changed so.
func block(change func(e *kvEvent)) *kvEvent {
	e := &kvEvent{kind: kvStored, hashes: []uint64{1}, tokens: make([]uint32, 16), blockSize: 16, group: -1}
	change(e)
	return e
}

// What an engine has elsewhere, or in a group of blocks from which no prompt can be continued, does not count as held.
func TestBlocksThatCount(t *testing.T) {
	for name, c := range map[string]struct {
		change func(e *kvEvent)
		want   int
	}{
		"on the GPU":                {func(*kvEvent) {}, 16},
		"at another engine":         {func(e *kvEvent) { e.remote = true }, 0},
		"on a disk":                 {func(e *kvEvent) { e.medium = prefix.Elsewhere }, 0},
		"in the first full group":   {func(e *kvEvent) { e.group, e.spec = 2, []byte("full_attention") }, 16},
		"in a windowed group":       {func(e *kvEvent) { e.group, e.windowed = 2, true }, 0},
		"in a group of another use": {func(e *kvEvent) { e.group, e.spec = 2, []byte("mamba") }, 0},
	} {
		p := fleet.NewPool("p")
		p.Apply(fleet.PoolConfig{Name: "p", Model: "m", Endpoints: []fleet.Endpoint{ep("e:1")}})
		a := &applier{pool: p, name: "e:1", log: slog.New(slog.DiscardHandler), now: func() time.Duration { return 0 }, count: newFollowMetrics().endpoint("p", "e:1")}
		a.turn(prefix.FollowedFromEmpty, "")
		a.event(block(c.change))
		if got := p.Status(0)[0].HeldTokens; got != c.want {
			t.Errorf("%s: got %d tokens held, want %d", name, got, c.want)
		}
	}
}

// A salt is taken as requests have it; whatever else a block depends on stands for itself, and for no prompt's salt.
func TestNamesOfBlocks(t *testing.T) {
	image := pack(t, []any{[]any{"image", 3}})
	for _, c := range []struct {
		what    string
		change  func(e *kvEvent)
		adapter string
		extra   []string
	}{
		{"nothing", func(*kvEvent) {}, "", nil},
		{"a salt", func(e *kvEvent) { e.extras = [][]byte{pack(t, []any{"pepper"})} }, "", []string{"pepper"}},
		{"a salt of its own", func(e *kvEvent) { e.salt = []byte("pepper") }, "", []string{"pepper"}},
		{"an adapter and a salt", func(e *kvEvent) {
			e.adapter, e.adapted, e.extras = []byte("a"), true, [][]byte{pack(t, []any{"a", "pepper"})}
		}, "a", []string{"pepper"}},
		{"an adapter without a name", func(e *kvEvent) { e.adapted = true }, unnamed, nil},
		{"two texts", func(e *kvEvent) { e.extras = [][]byte{pack(t, []any{"b", "c"})} }, "", []string{"\x00" + string(pack(t, []any{"b", "c"}))}},
		{"an image", func(e *kvEvent) { e.extras = [][]byte{image} }, "", []string{"\x00" + string(image)}},
	} {
		if adapter, extra := block(c.change).names(); adapter != c.adapter || !slices.Equal(extra, c.extra) {
			t.Errorf("%s: got %q and %q, want %q and %q", c.what, adapter, extra, c.adapter, c.extra)
		}
	}
}

// An engine that crashes breaks off what it said and then refuses connections: that is one warning. Another cause later is another.
func TestOneFaultIsOneWarning(t *testing.T) {
	p := fleet.NewPool("p")
	p.Apply(fleet.PoolConfig{Name: "p", Model: "m", Endpoints: []fleet.Endpoint{ep("e:1")}})
	var log strings.Builder
	now := time.Minute
	a := &applier{pool: p, name: "e:1", log: slog.New(slog.NewTextHandler(&log, nil)), now: func() time.Duration { return now }, count: newFollowMetrics().endpoint("p", "e:1")}
	f := func(what string, state prefix.Following, why string, want int) {
		t.Helper()
		a.turn(state, why)
		if got := strings.Count(log.String(), "level=WARN"); got != want {
			t.Errorf("%s: got %d warnings, want %d:\n%s", what, got, want, log.String())
		}
	}
	f("a crash", prefix.NotFollowed, "broke off", 1)
	now += followPauseLeast
	f("the same crash", prefix.NotFollowed, "connection refused", 1)
	now += time.Minute
	f("still the same", prefix.NotFollowed, "connection refused", 1)
	f("another cause", prefix.NotFollowed, "no publisher", 2)
	f("back", prefix.FollowedFromEmpty, "", 2)
	f("the next crash", prefix.NotFollowed, "broke off", 3)
}
