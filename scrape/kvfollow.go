package scrape

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/prefix"
)

// follower reads the KV events of one endpoint, from its own publisher: what comes over this subscription is credited
// to this endpoint, whatever else the messages say. It uses its fields in one goroutine.
type follower struct {
	dial dialFunc
	// address is that of the publisher, replay that of the socket that gives messages again, empty for none.
	address, replay, topic string
	// rank is the data-parallel rank whose events these must be, -1 for any one.
	rank int
	now  func() time.Duration
	// event takes each event in order, turn what is known of the cache, and why no more, each time that there is something
	// to say. What was told before a turn is to be forgotten.
	event func(*kvEvent)
	turn  func(prefix.Following, string)
	count *followCounts

	batch kvBatch
	// next is the number of the message to come, last a fingerprint of the one before; known says that there was one.
	next  uint64
	last  uint64
	known bool
	seed  maphash.Seed
	// heard is the rank of the messages since the beginning, -1 before one says it.
	heard int
	// live is the last number that came by subscription on this connection, plus one.
	live      uint64
	retryAt   time.Duration // until when a replay that failed is not asked for again
	backUntil time.Duration // until when numbers that go back are no restart, but a second publisher
	connected bool
}

// Patience of a follower.
const (
	followPauseLeast = 500 * time.Millisecond
	followPauseMost  = 30 * time.Second
	// replayPatience is how long a publisher may take for the next message of a replay: it looks for questions ten times a
	// second, between other work.
	replayPatience = 5 * time.Second
	replayPause    = 10 * time.Second
	// replayMost is how long a whole replay may take: while it goes on, nobody reads what happens now.
	replayMost = time.Minute
	// A publisher that has ended briefMost connections in a row, each before it was steady, is as good as none.
	steady    = 15 * time.Second
	briefMost = 3
)

// lastReplayed is the number that ends a replay, −1.
const lastReplayed = math.MaxUint64

var (
	errRank     = errors.New("its events are those of another data-parallel rank")
	errRanks    = errors.New("they are those of several (set ranks, if the address has them)")
	errReplay   = errors.New("no replay")
	errReplayed = errors.New("its replay can't be read")
	errBack     = errors.New("the numbers of its messages go back again and again: more than one publisher answers there")
)

// run follows until ctx ends, over as many connections as it takes.
func (f *follower) run(ctx context.Context) {
	f.seed = maphash.MakeSeed()
	pause, brief := followPauseLeast, 0
	for ctx.Err() == nil {
		f.connected = false
		began := f.now()
		err := f.connection(ctx)
		lasted := f.now() - began
		if brief++; lasted >= steady {
			pause, brief = followPauseLeast, 0
		}
		switch {
		case ctx.Err() != nil:
			return
		case f.connected && brief < briefMost:
			if lasted < followPauseLeast {
				wait(ctx, followPauseLeast) // who ends every connection at once must not be called without end
			}
			continue // before anything is forgotten: it may be the network's fault alone
		}
		f.known = false
		f.turn(prefix.NotFollowed, f.words(err))
		if errors.Is(err, errRanks) {
			pause = followPauseMost // what comes first is one rank's, so that it looks well at each beginning
		}
		wait(ctx, pause)
		pause = min(2*pause, followPauseMost)
	}
}

// wait lets time pass; false when ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// words says why events don't come.
func (f *follower) words(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return "no connection to its KV events at " + f.address + ": " + op.Err.Error()
	}
	return "its KV events at " + f.address + " ended: " + err.Error()
}

// connection follows over one connection until it breaks.
func (f *follower) connection(ctx context.Context) error {
	sub, err := dialZMTP(ctx, f.dial, f.address, zmtpSub)
	if err != nil {
		return err
	}
	defer sub.close()
	if err := sub.subscribe(f.topic); err != nil {
		return err
	}
	f.live = 0
	if err := f.begin(ctx); err != nil {
		return err
	}
	f.connected = true
	for {
		frames, err := sub.receive()
		if err != nil {
			f.connected = !errors.Is(err, errZMTP) // or it would be called again and again, and be taken for one that is silent
			return err
		}
		if len(frames) == 3 && len(frames[1]) == 8 {
			err = f.message(ctx, binary.BigEndian.Uint64(frames[1]), frames[2])
		} else {
			err = errEvents
		}
		if err != nil {
			f.connected = !errors.Is(err, errRank) && !errors.Is(err, errEvents) && !errors.Is(err, errBack)
			return err
		}
	}
}

// begin finds out what a publisher has said before. If it gives the last message that we know again, nothing was missed
// but what follows that. Otherwise, and without a replay, it is another one, with an empty cache as far as is known.
func (f *follower) begin(ctx context.Context) error {
	if f.known {
		same := false
		err := f.ask(ctx, f.next-1, func(n uint64, payload []byte) error {
			if n == f.next-1 {
				same = maphash.Bytes(f.seed, payload) == f.last
				return nil
			}
			if !same {
				return errReplayed // the rest comes with everything
			}
			return f.take(n, payload)
		})
		if same && (err == nil || errors.Is(err, errReplay)) {
			return nil
		}
	}
	return f.restart(ctx)
}

// restart forgets everything and learns what the publisher still has of its beginning.
func (f *follower) restart(ctx context.Context) error {
	if f.known {
		f.count.restarts.add(1)
	}
	f.next, f.known, f.heard = 0, false, -1
	first := true
	learn := func(n uint64, payload []byte) error {
		switch {
		case first && n == 0:
			f.turn(prefix.FollowedFromEmpty, "")
		case first:
			f.next = n
			f.turn(prefix.FollowedFromNow, "what was cached before is not known: the replay does not reach back to the beginning")
		}
		first = false
		return f.take(n, payload)
	}
	f.retryAt = 0
	err := f.ask(ctx, 0, learn)
	if first && f.replay != "" && errors.Is(err, errReplay) && wait(ctx, followPauseLeast) {
		f.retryAt = 0 // an engine that starts opens the one socket after the other
		err = f.ask(ctx, 0, learn)
	}
	switch {
	case errors.Is(err, errRank), errors.Is(err, errEvents):
		return err
	case err == nil && first:
		f.turn(prefix.FollowedFromEmpty, "") // nothing was published yet
	case first:
		f.turn(prefix.FollowedFromNow, "what was cached before is not known: "+err.Error())
	}
	return nil
}

// message takes one that came by subscription.
func (f *follower) message(ctx context.Context, n uint64, payload []byte) error {
	if n < f.live {
		// Numbers go back on one connection where something between us and the engine hides that it was restarted.
		if f.now() < f.backUntil {
			return errBack
		}
		f.backUntil = f.now() + replayPause
		if err := f.restart(ctx); err != nil {
			return err
		}
	}
	if n > f.next {
		if err := f.gap(ctx, n); err != nil {
			return err
		}
	}
	f.live = n + 1
	if n < f.next {
		return nil // a replay had it
	}
	return f.take(n, payload)
}

// gap asks again for the messages before n that did not come. Of what is still missing then, nothing is known.
func (f *follower) gap(ctx context.Context, n uint64) error {
	if f.known {
		f.count.gaps.add(1)
	}
	err := f.ask(ctx, f.next, func(m uint64, payload []byte) error {
		f.passOver(m)
		return f.take(m, payload)
	})
	if errors.Is(err, errRank) || errors.Is(err, errEvents) {
		return err
	}
	if f.next < n && f.replay != "" {
		f.retryAt = max(f.retryAt, f.now()+replayPause) // or one that keeps too little would be asked for each message
	}
	f.passOver(n)
	return nil
}

// passOver goes on with message n, whether those before it came or not.
func (f *follower) passOver(n uint64) {
	switch missing := n - min(f.next, n); {
	case missing == 0:
		return
	case f.known:
		f.lose(int(min(missing, math.MaxInt32)), fmt.Sprintf("%d messages were lost", missing))
	default:
		f.turn(prefix.FollowedFromNow, "what was cached before is not known: events begin late")
	}
	f.next = n
}

// lose forgets what was known: some of those blocks may have been removed in what is lost.
func (f *follower) lose(messages int, why string) {
	f.count.lost.add(messages)
	f.turn(prefix.FollowedFromNow, why)
}

// take applies one message, once.
func (f *follower) take(n uint64, payload []byte) error {
	if n < f.next {
		return nil
	}
	err := f.batch.read(payload, f.event)
	if rank := f.batch.rank; rank >= 0 {
		switch {
		case f.rank >= 0 && rank != f.rank:
			return fmt.Errorf("%w: %d", errRank, rank)
		case f.heard >= 0 && rank != f.heard:
			return fmt.Errorf("%w: %w: %d and %d", errRank, errRanks, f.heard, rank)
		}
		f.heard = rank
	}
	if err != nil {
		if !f.known {
			return err // nothing could be read of what it says
		}
		f.lose(1, "a message can't be read")
	}
	f.next, f.known, f.last = n+1, true, maphash.Bytes(f.seed, payload)
	return nil
}

// ask has the messages from a number on given again, and hands them on in order. It reports errReplay where there is
// none, and what the taker says.
func (f *follower) ask(ctx context.Context, from uint64, take func(n uint64, payload []byte) error) error {
	if f.replay == "" {
		return fmt.Errorf("%w is configured", errReplay)
	}
	if f.now() < f.retryAt {
		return fmt.Errorf("%w a moment ago", errReplay)
	}
	f.count.replays.add(1)
	err := f.replayed(ctx, from, take)
	if err != nil && !errors.Is(err, errReplayed) {
		f.retryAt = f.now() + replayPause
	}
	return err
}

func (f *follower) replayed(ctx context.Context, from uint64, take func(n uint64, payload []byte) error) error {
	dealer, err := dialZMTP(ctx, f.dial, f.replay, zmtpDealer)
	if err != nil {
		return fmt.Errorf("%w at %s: %w", errReplay, f.replay, err)
	}
	defer dealer.close()
	if err := dealer.send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return fmt.Errorf("%w at %s: %w", errReplay, f.replay, err)
	}
	end := f.now() + replayMost
	for last, any := uint64(0), false; ; any = true {
		dealer.until = time.Now().Add(replayPatience)
		frames, err := dealer.receive()
		if err != nil {
			return fmt.Errorf("%w at %s: %w", errReplay, f.replay, err)
		}
		// Before the number come an empty frame and, in some releases, the topic.
		if len(frames) < 3 || len(frames[len(frames)-2]) != 8 {
			return errReplayed
		}
		n := binary.BigEndian.Uint64(frames[len(frames)-2])
		if n == lastReplayed {
			return nil
		}
		switch {
		case any && n <= last:
			return fmt.Errorf("%w at %s: message %d comes after %d", errReplay, f.replay, n, last)
		case f.now() > end:
			return fmt.Errorf("%w at %s that ends within %s", errReplay, f.replay, replayMost)
		}
		last = n
		if err := take(n, frames[len(frames)-1]); err != nil {
			return err
		}
	}
}

// withPort is the address of another port of a host.
func withPort(address string, port int) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
