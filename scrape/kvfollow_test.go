package scrape

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/sluice-gateway/sluice/prefix"
)

// publisher is a real one of ZeroMQ, with a replay socket, whose buffer a test can tamper with.
type publisher struct {
	t              *testing.T
	events, router zmq4.Socket
	address        string
	replay         string
	topic          string
	mu             sync.Mutex
	kept           map[uint64][]byte
	next           uint64
	rank           int
	end            context.CancelFunc
}

func publish(t *testing.T, address, replay string) *publisher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &publisher{t: t, events: zmq4.NewPub(ctx), router: zmq4.NewRouter(ctx), topic: "kv@m", kept: make(map[uint64][]byte), end: cancel}
	if err := errors.Join(p.router.Listen("tcp://"+replay), p.events.Listen("tcp://"+address)); err != nil {
		t.Fatal(err)
	}
	p.address, p.replay = p.events.Addr().String(), p.router.Addr().String()
	go p.answer()
	t.Cleanup(p.close)
	return p
}

func (p *publisher) close() {
	p.end()
	_ = p.events.Close()
	_ = p.router.Close()
}

// answer gives messages again, as vLLM does from the oldest it has.
func (p *publisher) answer() {
	for {
		m, err := p.router.Recv()
		if err != nil {
			return
		}
		from := binary.BigEndian.Uint64(m.Frames[2])
		p.mu.Lock()
		for n := from; n < p.next; n++ {
			if payload, ok := p.kept[n]; ok {
				_ = p.router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, binary.BigEndian.AppendUint64(nil, n), payload))
			}
		}
		_ = p.router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, binary.BigEndian.AppendUint64(nil, lastReplayed), nil))
		p.mu.Unlock()
	}
}

// say publishes that a block is stored; silently means that nobody hears it, but that it can be asked for.
func (p *publisher) say(hash int, silently bool) {
	p.t.Helper()
	payload := pack(p.t, []any{1.5, []any{map[string]any{"type": "BlockStored", "block_hashes": []any{hash}, "token_ids": []any{1, 2}, "block_size": 2}}, p.rank})
	p.mu.Lock()
	n := p.next
	p.next++
	p.kept[n] = payload
	p.mu.Unlock()
	if !silently {
		if err := p.events.SendMulti(zmq4.NewMsgFrom([]byte(p.topic), binary.BigEndian.AppendUint64(nil, n), payload)); err != nil {
			p.t.Fatal(err)
		}
	}
}

// subscribed waits until the publisher knows of a subscription.
func (p *publisher) subscribed() {
	for len(p.events.(zmq4.Topics).Topics()) == 0 {
		runtime.Gosched()
	}
}

// following is a follower under test, and what it tells in order.
type following struct {
	*follower
	told  chan string
	conns chan net.Conn
}

func followIt(t *testing.T, address, replay string, change func(*follower)) *following {
	t.Helper()
	start := time.Now()
	f := &following{told: make(chan string, 1000), conns: make(chan net.Conn, 1000)}
	f.follower = &follower{address: address, replay: replay, topic: "kv@", rank: -1, now: func() time.Duration { return time.Since(start) },
		event: func(e *kvEvent) { f.told <- fmt.Sprint(e.hashes) },
		turn: func(s prefix.Following, why string) {
			f.told <- strings.TrimSpace([...]string{"lost", "from now", "from empty"}[s] + " " + strings.ReplaceAll(why, address, "there"))
		},
		count: newFollowMetrics().endpoint("p", "e"),
		dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err == nil {
				f.conns <- c
			}
			return c, err
		}}
	if change != nil {
		change(f.follower)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

// hear waits until the follower has told these, in order and nothing between.
func (f *following) hear(t *testing.T, want ...string) {
	t.Helper()
	for i, w := range want {
		if got := <-f.told; got != w {
			t.Fatalf("got %q as number %d, want %q of %q", got, i, w, want)
		}
	}
}

// What was said before the connection is learned from the replay; what comes after by subscription, once each and in
// order; what does not come is asked for again.
func TestFollow(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	p.say(1, true)
	p.say(2, true)
	f := followIt(t, p.address, p.replay, nil)
	f.hear(t, "from empty", "[1]", "[2]")
	p.subscribed()
	p.say(3, false)
	f.hear(t, "[3]")
	p.say(4, true)
	p.say(5, true)
	p.say(6, false)
	f.hear(t, "[4]", "[5]", "[6]")
	p.topic = "other"
	p.say(7, false) // goes by a topic that nobody wants, and so leaves a gap
	p.topic = "kv@m"
	p.say(8, false)
	f.hear(t, "[7]", "[8]")
	if n := f.count.gaps.n.Load(); n != 2 {
		t.Errorf("got %d gaps, want 2", n)
	}
	// The publisher no longer has all that is missing.
	p.say(9, true)
	p.mu.Lock()
	delete(p.kept, 8)
	p.mu.Unlock()
	p.say(10, true)
	p.say(11, false)
	f.hear(t, "from now 1 messages were lost", "[10]", "[11]")
	p.say(12, false)
	f.hear(t, "[12]")
	if n := f.count.lost.n.Load(); n != 1 {
		t.Errorf("got %d lost messages, want 1", n)
	}
}

// A connection that breaks while the publisher stays costs nothing; one that ends with it, everything.
func TestFollowOverConnections(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	p.say(1, true)
	f := followIt(t, p.address, p.replay, nil)
	f.hear(t, "from empty", "[1]")
	p.subscribed()
	p.say(2, true)
	p.say(3, true)
	(<-f.conns).Close() // the subscription
	f.hear(t, "[2]", "[3]")
	p.close()
	for got := range f.told { // the one socket may be closed before the other
		if strings.HasPrefix(got, "lost no connection to its KV events at there: ") {
			break
		}
	}
	again := publish(t, p.address, p.replay)
	again.say(7, true)
	for got := range f.told {
		if got == "from empty" {
			break
		}
	}
	f.hear(t, "[7]")
	again.subscribed()
	again.say(8, false)
	f.hear(t, "[8]")
}

// A restart so fast that the next connection finds the new publisher is found by its first messages, which are others.
func TestFollowFastRestart(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	p.say(1, true)
	p.say(2, true)
	f := followIt(t, p.address, p.replay, nil)
	f.hear(t, "from empty", "[1]", "[2]")
	p.subscribed()
	p.mu.Lock()
	p.kept, p.next = make(map[uint64][]byte), 0
	p.mu.Unlock()
	for n := range 3 {
		p.say(20+n, true)
	}
	(<-f.conns).Close()
	f.hear(t, "from empty", "[20]", "[21]", "[22]")
	if n := f.count.restarts.n.Load(); n != 1 {
		t.Errorf("got %d restarts, want 1", n)
	}
}

// Without a replay events count from when they come, or from the first of all; numbers that go back are a restart.
func TestFollowWithoutReplay(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	p.say(1, true)
	f := followIt(t, p.address, "", nil)
	f.hear(t, "from now what was cached before is not known: no replay is configured")
	p.subscribed()
	p.say(2, false)
	f.hear(t, "from now what was cached before is not known: events begin late", "[2]")
	p.say(3, true)
	p.say(4, false)
	f.hear(t, "from now 1 messages were lost", "[4]")
	p.mu.Lock()
	p.next = 0
	p.mu.Unlock()
	p.say(5, false)
	f.hear(t, "from now what was cached before is not known: no replay is configured", "[5]")
	p.say(6, false)
	f.hear(t, "[6]")
}

// D08: events of another rank are not taken for this one's.
func TestFollowOtherRank(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	p.say(1, true)
	f := followIt(t, p.address, p.replay, func(f *follower) { f.rank = 1 })
	f.hear(t, "from empty", "[1]", "lost its KV events at there ended: its events are those of another data-parallel rank: 0")
}

// D08: an endpoint that is said to have no ranks may be any one of a deployment, and is not several.
func TestFollowSeveralRanks(t *testing.T) {
	const several = "lost its KV events at there ended: its events are those of another data-parallel rank: " +
		"they are those of several (set ranks, if the address has them): 3 and 4"
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	p.rank = 3
	p.say(1, true)
	p.say(2, true)
	f := followIt(t, p.address, p.replay, nil)
	f.hear(t, "from empty", "[1]", "[2]")
	p.subscribed()
	p.rank = 4
	p.say(3, false)
	f.hear(t, "[3]", several)
	f = followIt(t, p.address, p.replay, nil)
	f.hear(t, "from empty", "[1]", "[2]", "[3]", several)
}

// What is no publisher is said to be none.
func TestFollowNoPublisher(t *testing.T) {
	for name, c := range map[string]struct{ says, want string }{
		"HTTP":           {"HTTP/1.1 400 Bad Request\r\n\r\n", errNotZMTP.Error()},
		"silence":        {"", "i/o timeout"},
		"an end":         {"\xff\x00", "unexpected EOF"},
		"other security": {"\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00CURVE" + strings.Repeat("\x00", 47), errNotZMTP.Error()},
		"a huge frame": {"\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL" + strings.Repeat("\x00", 48) + "\x04\x06\x05READY" +
			"\x02\x7f\xff\xff\xff\xff\xff\xff\xff", errZMTP.Error()},
	} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			go func() {
				_, _ = io.WriteString(far, c.says)
				if name == "an end" {
					far.Close()
				}
			}()
			go io.Copy(io.Discard, far)
			z, err := dialZMTP(t.Context(), func(context.Context, string, string) (net.Conn, error) { return near, nil }, "there", zmtpSub)
			if err == nil {
				_, err = z.receive()
				z.close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", name, err, c.want)
			}
		})
	}
}

// What subscribes well and says something else is followed no longer, and not as an engine that holds nothing.
func TestFollowOtherMessages(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	f := followIt(t, p.address, p.replay, nil)
	f.hear(t, "from empty")
	p.subscribed()
	if err := p.events.SendMulti(zmq4.NewMsgFrom([]byte(p.topic), []byte("news"))); err != nil {
		t.Fatal(err)
	}
	f.hear(t, "lost its KV events at there ended: "+errEvents.Error())
}

// A message that can't be read may have said anything: of what is held, only what comes after it is known.
func TestFollowUnreadable(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	p.say(1, true)
	f := followIt(t, p.address, p.replay, nil)
	f.hear(t, "from empty", "[1]")
	p.subscribed()
	p.mu.Lock()
	n := p.next
	p.next++
	p.mu.Unlock()
	if err := p.events.SendMulti(zmq4.NewMsgFrom([]byte(p.topic), binary.BigEndian.AppendUint64(nil, n), []byte("\x93\x01"))); err != nil {
		t.Fatal(err)
	}
	p.say(2, false)
	f.hear(t, "from now a message can't be read", "[2]")
}

// greeting is what a publisher says first.
var greeting = "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x01NULL" + strings.Repeat("\x00", 48) + "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"

// scripted follows a publisher made up of what script writes to each connection, in made-up time, for so long. It returns what the
// follower told, how often it called, and its counts.
func scripted(t *testing.T, d time.Duration, script func(far net.Conn, dial int, gone <-chan struct{})) (told []string, dials int, count *followCounts) {
	t.Helper()
	count = newFollowMetrics().endpoint("p", "e")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		start := time.Now()
		f := &follower{address: "there", replay: "again", rank: -1, now: func() time.Duration { return time.Since(start) }, count: count,
			event: func(*kvEvent) {},
			turn: func(s prefix.Following, why string) {
				told = append(told, strings.TrimSpace([...]string{"lost", "from now", "from empty"}[s]+" "+why))
			},
			dial: func(_ context.Context, _, address string) (net.Conn, error) {
				n := 0
				if address == "there" {
					if dials++; dials > 1000 {
						cancel()
					}
					n = dials
				}
				near, far := net.Pipe()
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					_, _ = io.Copy(io.Discard, far)
				}()
				go func() {
					defer far.Close()
					script(far, n, gone)
				}()
				return near, nil
			}}
		f.run(ctx)
	})
	return told, dials, count
}

// framed is a message as it is on the wire.
func framed(n uint64, payload string) string {
	out := appendFrame(nil, zmtpMore, []byte("kv"))
	out = appendFrame(out, zmtpMore, binary.BigEndian.AppendUint64(nil, n))
	return string(appendFrame(out, 0, []byte(payload)))
}

// noEvents is a batch of none; noReplay what a publisher without anything to give again says.
const noEvents = "\x92\x01\x90"

func noReplay() string { return greeting + framed(lastReplayed, "") }

// A publisher that ends every connection as soon as it stands is called less and less, and is not taken for one that has
// nothing to say.
func TestFollowIsPatient(t *testing.T) {
	told, dials, _ := scripted(t, time.Minute, func(far net.Conn, dial int, gone <-chan struct{}) {
		if dial == 0 {
			_, _ = io.WriteString(far, noReplay())
			return
		}
		_, _ = io.WriteString(far, greeting)
		<-time.After(time.Millisecond)
	})
	if dials < 5 || dials > 11 {
		t.Errorf("got %d connections in a minute, want a few, further and further apart", dials)
	}
	if last := told[len(told)-1]; last != "lost its KV events at there ended: EOF" {
		t.Errorf("got %q as the last that is known, want that nothing is: %q", last, told)
	}
}

// A message that never comes whole, and one that breaks the rules, don't leave an endpoint followed whose events are not heard.
func TestFollowBrokenMessages(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		want string
	}{
		"half a frame":    {framed(0, noEvents) + "\x02\x00\x00\x00\x00\x00\x10\x00\x00half", "does not come whole"},
		"half a message":  {framed(0, noEvents) + "\x01\x02kv", "does not come whole"},
		"half a header":   {framed(0, noEvents) + "\x02\x00", "does not come whole"},
		"a giant frame":   {framed(0, noEvents) + "\x02\x40\x00\x00\x00\x00\x00\x00\x00", "a message of more than"},
		"too many frames": {strings.Repeat("\x01\x01a", maxFrames+1), "a message of more than"},
	} {
		t.Run(name, func(t *testing.T) {
			told, dials, _ := scripted(t, time.Minute, func(far net.Conn, dial int, gone <-chan struct{}) {
				if dial == 0 {
					_, _ = io.WriteString(far, noReplay())
					return
				}
				_, _ = io.WriteString(far, greeting+c.says)
				<-gone
			})
			if dials < 2 || dials > 20 {
				t.Errorf("got %d connections in a minute, want a few", dials)
			}
			if !slices.ContainsFunc(told, func(s string) bool { return strings.HasPrefix(s, "lost") && strings.Contains(s, c.want) }) {
				t.Errorf("got %q, want lost for %q", told, c.want)
			}
		})
	}
}

// Two publishers behind one address make numbers go back and forth: no more than one restart is believed.
func TestFollowTwoPublishers(t *testing.T) {
	told, _, count := scripted(t, time.Minute, func(far net.Conn, dial int, gone <-chan struct{}) {
		if dial == 0 {
			_, _ = io.WriteString(far, noReplay())
			return
		}
		_, _ = io.WriteString(far, greeting)
		for n := uint64(0); ; n++ {
			if _, err := io.WriteString(far, framed(1000+n, noEvents)+framed(5+n, noEvents)); err != nil {
				return
			}
			<-time.After(10 * time.Millisecond)
		}
	})
	if want := "lost its KV events at there ended: " + errBack.Error(); !slices.Contains(told, want) {
		t.Errorf("got %q, want %q", told, want)
	}
	if n := count.replays.n.Load(); n > 40 {
		t.Errorf("got %d replays in a minute, want a few", n)
	}
}

// A replay that goes round, or goes on without end, ends: what happens meanwhile must be heard.
func TestFollowEndlessReplay(t *testing.T) {
	for name, c := range map[string]struct {
		next  func(n uint64) uint64
		every time.Duration
		want  string
	}{
		"round":   {func(uint64) uint64 { return 0 }, 0, "from now 98 messages were lost"},
		"onwards": {func(n uint64) uint64 { return n + 1 }, time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			told, _, _ := scripted(t, 3*time.Minute, func(far net.Conn, dial int, gone <-chan struct{}) {
				if dial > 0 {
					_, _ = io.WriteString(far, greeting+framed(99, noEvents))
					<-gone
					return
				}
				_, _ = io.WriteString(far, greeting)
				for n := uint64(0); ; n = c.next(n) {
					if _, err := io.WriteString(far, framed(n, noEvents)); err != nil {
						break
					}
					if c.every > 0 {
						<-time.After(c.every)
					}
				}
				select {
				case <-ended:
				default:
					close(ended)
				}
			})
			select {
			case <-ended:
			default:
				t.Error("the replay went on")
			}
			if c.want != "" && !slices.Contains(told, c.want) {
				t.Errorf("got %q, want %q", told, c.want)
			}
		})
	}
}

// Heartbeats are answered, and commands are no messages.
func TestHeartbeat(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	got := make(chan string)
	go func() {
		go io.WriteString(far, greeting+"\x04\x0a\x04PING\x00\x0aabc"+"\x01\x01a\x00\x02bc")
		all, _ := io.ReadAll(io.LimitReader(far, 64+27+10))
		got <- string(all[64+27:])
	}()
	z, err := dialZMTP(t.Context(), func(context.Context, string, string) (net.Conn, error) { return near, nil }, "there", zmtpSub)
	if err != nil {
		t.Fatal(err)
	}
	defer z.close()
	frames, err := z.receive()
	if err != nil || len(frames) != 2 || string(frames[0])+string(frames[1]) != "abc" {
		t.Errorf("got frames %q, %v, want a and bc", frames, err)
	}
	if pong := <-got; pong != "\x04\x08\x04PONGabc" {
		t.Errorf("got %q, want a PONG with the PING's context", pong)
	}
}

func FuzzZMTP(f *testing.F) {
	f.Add([]byte(greeting + "\x01\x01a\x00\x02bc"))
	f.Fuzz(func(t *testing.T, says []byte) {
		near, far := net.Pipe()
		go func() {
			_, _ = far.Write(says)
			far.Close()
		}()
		go io.Copy(io.Discard, far)
		z, err := dialZMTP(t.Context(), func(context.Context, string, string) (net.Conn, error) { return near, nil }, "there", zmtpSub)
		for err == nil {
			var frames [][]byte
			if frames, err = z.receive(); len(slices.Concat(frames...)) > len(says) {
				t.Fatalf("got %q out of %q", frames, says)
			}
		}
		if z != nil {
			z.close()
		}
	})
}
