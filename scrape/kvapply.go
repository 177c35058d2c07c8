package scrape

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
	"github.com/sluice-gateway/sluice/prefix"
)

// follow follows the endpoint's KV events, if it publishes any, until ctx ends.
func (w *worker) follow(ctx context.Context) {
	k := w.endpoint.KVEvents
	if k.Port == 0 {
		return
	}
	a := &applier{pool: w.pool, name: w.endpoint.Name, log: w.log, now: w.now, count: w.metrics.follow, known: []string{"0", prefix.DefaultVLLMSeed}}
	if w.clash != "" {
		a.turn(prefix.NotFollowed, w.clash)
		return
	}
	if k.HashSeed != "" {
		a.known = append(a.known, k.HashSeed)
	}
	f := &follower{dial: w.scraper.opts.DialContext, address: withPort(w.endpoint.Address(), k.Port+w.endpoint.Rank), topic: k.Topic, rank: -1,
		now: w.now, event: a.event, turn: a.turn, count: w.metrics.follow}
	if k.ReplayPort != 0 {
		f.replay = withPort(w.endpoint.Address(), k.ReplayPort+w.endpoint.Rank)
	}
	if w.endpoint.Ranks > 0 {
		f.rank = w.endpoint.Rank
	}
	if f.dial == nil {
		f.dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount}}).DialContext
	}
	f.run(ctx)
	w.pool.FollowEvents(w.endpoint.Name, prefix.NotFollowed)
}

// A publisher says nothing for as long as its engine has nothing to do, so that only the kernel can tell an idle
// connection from a dead one: within half a minute.
const (
	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 5 * time.Second
	keepAliveCount    = 3
)

// applier hands what an endpoint's events say on to its pool.
type applier struct {
	pool  *fleet.Pool
	name  string
	log   *slog.Logger
	now   func() time.Duration
	count *followCounts
	// said is what the log says last, guessed when it said that there are no events.
	said    string
	guessed time.Duration
	// known are the seeds to try.
	known []string
	one   [1]prefix.Event
	// group is the cache group that counts in a hybrid model, -1 before it is known: the first of full attention. In the
	// others a prompt can be continued only near where it ended, so that they say little of what a prefix is worth.
	group   int
	grouped bool
	// seeds are those that the engine's hashes may begin with, nil once that is settled.
	seeds []string
}

// sameFault is how soon after a warning another cause is part of the same fault: an engine that crashes first breaks off and then refuses connections.
const sameFault = 5 * time.Second

// turn tells the pool how well events are known, and says it in the log once.
func (a *applier) turn(f prefix.Following, why string) {
	a.grouped, a.seeds = false, a.known
	a.pool.FollowEvents(a.name, f)
	a.count.turn(a.now(), f, why)
	words := [...]string{"prefixes are guessed: KV events can't be followed", "prefixes are exact from here on", "prefixes are exact"}[f]
	if words+why == a.said {
		return
	}
	again := f == prefix.NotFollowed && strings.HasPrefix(a.said, words) && a.now()-a.guessed < sameFault
	a.said = words + why
	switch {
	case again:
		a.log.Debug(words, "why", why)
	case f == prefix.NotFollowed:
		a.guessed = a.now()
		a.log.Warn(words, "why", why)
	case why != "":
		a.log.Info(words, "why", why)
	default:
		a.log.Info(words)
	}
}

// event applies one event.
func (a *applier) event(e *kvEvent) {
	kind := e.kind
	if kind != kvOther && kind != kvCleared && (!a.counts(e) || e.remote) {
		kind = kvOther
	}
	a.count.events[kind].add(1)
	a.count.came(a.now(), 1)
	p := &a.one[0]
	*p = prefix.Event{Hashes: e.hashes, Parent: e.parent, First: !e.hasParent, Tokens: e.tokens, BlockSize: e.blockSize, Medium: e.medium}
	switch kind {
	case kvOther:
		return
	case kvStored:
		a.recognize(e)
		p.Kind = prefix.Stored
		p.Adapter, p.Extra = e.names()
	case kvRemoved:
		p.Kind = prefix.Removed
	case kvCleared:
		p.Kind = prefix.Cleared
		a.count.turn(a.now(), prefix.FollowedFromEmpty, "")
	}
	a.pool.ObserveBlocks(a.name, a.one[:])
}

// recognize finds out by the first block of a prompt which seed the engine's hashes begin with, if they are vLLM's
// sha256_cbor at all.
func (a *applier) recognize(e *kvEvent) {
	if a.seeds == nil || e.hasParent || e.adapted || len(e.extras) > 0 || len(e.salt) > 0 || e.blockSize < 1 || len(e.hashes) == 0 || len(e.tokens) < e.blockSize {
		return
	}
	var hasher prefix.VLLMHasher
	for _, seed := range a.seeds {
		root := prefix.VLLMRoot(seed)
		first := hasher.Next(&root, e.tokens[:e.blockSize], prefix.VLLMKeys{})
		if first.Short() == e.hashes[0] {
			a.count.name(root, e.blockSize)
			break
		}
	}
	a.seeds = nil
}

// counts reports whether the event is of the group of blocks that counts.
func (a *applier) counts(e *kvEvent) bool {
	if e.group < 0 {
		return e.full()
	}
	if e.kind == kvStored && !a.grouped && e.full() {
		a.group, a.grouped = e.group, true
	}
	return a.grouped && e.group == a.group
}

// unnamed stands for an adapter that is known by its number alone, and so by no prompt.
const unnamed = "\x00"

// names is the adapter, and for each block what else it depends on: a salt as it is, anything else as the engine wrote
// it after a zero byte, which no salt begins with.
func (e *kvEvent) names() (adapter string, extra []string) {
	if adapter = string(e.adapter); adapter == "" && e.adapted {
		adapter = unnamed
	}
	if len(e.extras) > 0 {
		extra = make([]string, len(e.hashes))
		for i, raw := range e.extras[:min(len(e.extras), len(extra))] {
			extra[i] = extraOf(raw, e.adapter)
		}
	}
	if len(e.salt) > 0 && !e.hasParent && len(e.hashes) > 0 {
		if extra == nil {
			extra = make([]string, len(e.hashes))
		}
		extra[0] = string(e.salt)
	}
	return adapter, extra
}

// extraOf reads one block's list: the adapter's name, which is known already, and at most a salt where there are no
// images.
func extraOf(raw, adapter []byte) string {
	if raw == nil {
		return ""
	}
	u := unpacker{p: raw}
	if !u.isArray() {
		return "\x00" + string(raw)
	}
	salt, salts, named := "", 0, len(adapter) == 0
	for n := u.array(); n > 0 && !u.bad; n-- {
		if !u.isText() {
			return "\x00" + string(raw)
		}
		if text := u.bytes(); !named && string(text) == string(adapter) {
			named = true
		} else {
			salt, salts = string(text), salts+1
		}
	}
	if salts > 1 || u.bad {
		return "\x00" + string(raw)
	}
	return salt
}
