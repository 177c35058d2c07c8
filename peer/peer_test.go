package peer

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gateway/sluice/fleet"
)

const unitBytes = 256

func config() []fleet.PoolConfig {
	c := fleet.PoolConfig{Name: "m", Model: "m"}
	for i := range 4 {
		c.Endpoints = append(c.Endpoints, fleet.Endpoint{Name: fmt.Sprintf("10.0.0.%d:8000", i)})
	}
	other := c
	other.Name, other.Model = "other", "other"
	return []fleet.PoolConfig{c, other}
}

// replica is a gateway as far as its peers are concerned.
type replica struct {
	t     *testing.T
	fleet *fleet.Fleet
	peers *Peers
	start time.Time
	log   buffer
	stop  func()
}

// buffer is a log that several goroutines write.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (r *replica) now() time.Duration { return time.Since(r.start) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// start runs a replica that listens and tells the others.
func start(t *testing.T, l net.Listener, secure *TLS, others ...string) *replica {
	t.Helper()
	r := &replica{t: t, fleet: new(fleet.Fleet), start: time.Now()}
	r.peers = New(r.fleet, Options{Peers: others, TLS: secure, Name: "r" + l.Addr().String(), Now: r.now, Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	r.fleet.Apply(config(), "")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.peers.Run(ctx, l); err != nil {
			t.Error(err)
		}
	}()
	r.stop = func() { cancel(); <-ended }
	t.Cleanup(r.stop)
	return r
}

func (r *replica) pool() *fleet.Pool {
	target, _ := r.fleet.Lookup("m")
	return target.Pool
}

// send sends a conversation's prompt and returns its lease.
func (r *replica) send(conversation uint64) *fleet.Lease {
	r.t.Helper()
	q := &fleet.Request{Model: "m", PromptBytes: 64 * unitBytes, UnitBytes: unitBytes, Streamed: true}
	for k := range uint64(64) {
		q.Blocks = append(q.Blocks, conversation<<32+k+1)
	}
	l, _ := r.pool().Pick(r.now(), q)
	if l == nil {
		r.t.Fatal("nothing may serve")
	}
	return l
}

// backlog is what the replica counts before its first token, in tokens.
func (r *replica) backlog() (sum float64) {
	for _, s := range r.pool().Status(r.now()) {
		sum += s.BacklogTokens
	}
	return sum
}

// until waits for something that will be true.
func (r *replica) until(what string, ok func() bool) {
	r.t.Helper()
	late := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-late:
			r.t.Fatalf("never: %s; the log:\n%s", what, r.log.String())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (r *replica) hears(n int) func() bool {
	return func() bool {
		heard := 0
		for _, s := range r.peers.Status() {
			if s.Heard && s.Told {
				heard++
			}
		}
		return heard == n
	}
}

// Three replicas, of which each has all their addresses, its own included, count the same and lead a conversation to the same endpoint; when
// one leaves, what it had open counts no longer.
func TestThreeReplicasCountTheSame(t *testing.T) {
	var listeners []net.Listener
	var all []string
	for range 3 {
		l := listen(t)
		listeners, all = append(listeners, l), append(all, l.Addr().String())
	}
	var replicas []*replica
	for _, l := range listeners {
		replicas = append(replicas, start(t, l, nil, all...))
	}
	for _, r := range replicas {
		r.until("two peers", r.hears(2))
	}
	begin := func(from uint64) (open []*fleet.Lease) {
		for i := range uint64(12) {
			open = append(open, replicas[i%3].send(from+i))
		}
		return open
	}
	const want = 12 * 64. * unitBytes / 4
	open := begin(1)
	for _, r := range replicas {
		r.until("everyone's backlog", func() bool { return r.backlog() == want })
	}
	for i, l := range open {
		l.Done(replicas[i%3].now(), fleet.Outcome{})
	}
	for _, r := range replicas {
		r.until("nothing left", func() bool { return r.backlog() == 0 })
	}
	for i := range uint64(12) {
		l := replicas[(i+1)%3].send(i + 1)
		if l.Endpoint.Name != open[i].Endpoint.Name {
			t.Errorf("conversation %d: got %s, want %s, where another replica has begun it", i, l.Endpoint.Name, open[i].Endpoint.Name)
		}
		l.Done(replicas[(i+1)%3].now(), fleet.Outcome{})
		for _, r := range replicas {
			r.until("nothing left", func() bool { return r.backlog() == 0 })
		}
	}
	open = begin(101)
	for _, r := range replicas {
		r.until("everyone's backlog", func() bool { return r.backlog() == want })
	}
	replicas[2].stop()
	for _, r := range replicas[:2] {
		r.until("the rest's backlog", func() bool { return r.backlog() == want*2/3 && r.hears(1)() })
	}
	for i, l := range open {
		l.FirstByte(replicas[i%3].now())
		l.Done(replicas[i%3].now(), fleet.Outcome{PromptTokens: 4000, OutputTokens: 10})
	}
	for _, r := range replicas[:2] {
		r.until("nothing left", func() bool { return r.backlog() == 0 })
		if text := r.log.String(); strings.Count(text, `msg="peer is heard"`) != 2 || strings.Count(text, "not heard any more") != 1 {
			t.Errorf("want two peers coming and one leaving in the log, got\n%s", text)
		}
	}
}

// relay passes connections on until it is cut, and again once it is mended.
type relay struct {
	mu       sync.Mutex
	listener net.Listener
	to       string
	conns    []net.Conn
	down     bool
}

func newRelay(t *testing.T, to string) *relay {
	r := &relay{listener: listen(t), to: to}
	t.Cleanup(func() { _ = r.listener.Close(); r.cut(true) })
	go func() {
		for {
			in, err := r.listener.Accept()
			if err != nil {
				return
			}
			r.join(in)
		}
	}()
	return r
}

func (r *relay) join(in net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out, err := net.Dial("tcp", r.to)
	if err != nil || r.down {
		_ = in.Close()
		return
	}
	r.conns = append(r.conns, in, out)
	go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
	go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
}

func (r *relay) cut(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

// When the connection breaks, the peer's requests count no longer; when it is back, those that are open do, whatever
// happened in between.
func TestConnectionHeals(t *testing.T) {
	la, lb := listen(t), listen(t)
	path := newRelay(t, lb.Addr().String())
	a := start(t, la, nil, path.listener.Addr().String())
	b := start(t, lb, nil)
	first := a.send(1)
	b.until("the first", func() bool { return b.backlog() > 0 })
	path.cut(true)
	b.until("nothing", func() bool { return b.backlog() == 0 })
	var open []*fleet.Lease
	for i := range uint64(5) {
		open = append(open, a.send(10+i))
	}
	first.Done(a.now(), fleet.Outcome{})
	path.cut(false)
	b.until("what is open", func() bool { return b.backlog() == a.backlog() && b.backlog() > 0 })
	for _, l := range open {
		l.Done(a.now(), fleet.Outcome{})
	}
	b.until("nothing", func() bool { return b.backlog() == 0 })
}

// A replica that starts is told what endpoints hold.
func TestNewReplicaIsNotBlind(t *testing.T) {
	la, lb := listen(t), listen(t)
	a := start(t, la, nil, lb.Addr().String())
	units := 0
	for i := range uint64(8) {
		a.send(i+1).Done(a.now(), fleet.Outcome{})
		units += 64
	}
	b := start(t, lb, nil, la.Addr().String())
	b.until("all prefixes", func() bool {
		sum := 0
		for _, s := range b.pool().Status(b.now()) {
			sum += s.PrefixUnits
		}
		return sum == units
	})
	for i := range uint64(8) {
		if got, want := b.send(i+1).Endpoint.Name, a.send(i+1).Endpoint.Name; got != want {
			t.Errorf("conversation %d: got %s, want %s", i, got, want)
		}
	}
}

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key, a.file, _ = certificate(t, nil)
	return a
}

// certificate makes a key and a certificate for 127.0.0.1, its own authority when by is nil.
func certificate(t *testing.T, by *authority) (cert *x509.Certificate, key *ecdsa.PrivateKey, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: by == nil, BasicConstraintsValid: true}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, certFile, keyFile
}

// identity is what a replica shows, and whom it believes.
func identity(t *testing.T, by, believes *authority) *TLS {
	t.Helper()
	_, _, cert, key := certificate(t, by)
	secure, err := LoadTLS(cert, key, believes.file)
	if err != nil {
		t.Fatal(err)
	}
	return secure
}

// Certificates of one authority are believed; those of another, none, and plain connections are refused, and the log
// says what to do.
func TestOnlyPeersAreHeard(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	l := listen(t)
	at := l.Addr().String()
	b := start(t, l, identity(t, ours, ours))
	good := start(t, listen(t), identity(t, ours, ours), at)
	good.send(1)
	b.until("the good one's", func() bool { return b.backlog() > 0 })
	want := b.backlog()
	for name, secure := range map[string]*TLS{"a certificate of another authority": identity(t, theirs, ours), "no TLS": nil,
		"an authority that did not sign ours": identity(t, ours, theirs)} {
		bad := start(t, listen(t), secure, at)
		bad.send(2)
		hint := "--peer-ca"
		if secure == nil {
			hint = "without TLS"
		}
		bad.until(name+" is refused", func() bool { return strings.Contains(bad.log.String(), "peer is not told") })
		if text := bad.log.String(); !strings.Contains(text, hint) || strings.Contains(text, "peer is told what") {
			t.Errorf("%s: got the log\n%s", name, text)
		}
		bad.stop()
	}
	if got := b.backlog(); got != want {
		t.Errorf("got a backlog of %v, want %v: a stranger was heard", got, want)
	}
}

// Files that can't be used are refused with the reason.
func TestTLSFilesAreChecked(t *testing.T) {
	a := newAuthority(t)
	_, _, cert, key := certificate(t, a)
	if secure, err := LoadTLS("", "", ""); secure != nil || err != nil {
		t.Errorf("no files: got %v, %v; want plain connections", secure, err)
	}
	for want, files := range map[string][3]string{"it needs a certificate, its key": {cert, key, ""}, "cannot load the certificate": {cert, cert, a.file},
		"cannot read the peers' authority": {cert, key, "none.pem"}, "there is no certificate in it": {cert, key, key}} {
		if _, err := LoadTLS(files[0], files[1], files[2]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A peer that says nothing is lost after a few seconds.
func TestSilenceIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := next(make(chan message), nil)
		if took := time.Since(began); err == nil || took != lostAfter {
			t.Errorf("got %v after %v, want an error after %v", err, took, lostAfter)
		}
	})
}

// A teller that is too slow misses the oldest notes and knows how many.
func TestRecordIsBounded(t *testing.T) {
	var r record
	r.add("m", &fleet.Note{ID: 1})
	if r.next != 0 {
		t.Error("notes are kept with nobody to tell")
	}
	wake := make(chan struct{}, 1)
	at := r.join(wake)
	blocks := make([]uint64, 3000)
	for i := range keepNotes {
		r.add("m", &fleet.Note{ID: uint64(i), Blocks: blocks[:i%len(blocks)]})
		if r.next-r.first > keepNotes || r.blocks > keepBlocks {
			t.Fatalf("got %d notes with %d blocks, want at most %d and %d", int(r.next-r.first), r.blocks, keepNotes, keepBlocks)
		}
	}
	_, next, _, lost := r.read(at, nil)
	if lost == 0 || next != at+uint64(lost) {
		t.Fatalf("got %d lost and go on at %d, want some lost", lost, next)
	}
	seen := 0
	for {
		var got []entry
		if got, next, _, lost = r.read(next, got); len(got) == 0 || lost != 0 {
			break
		}
		for _, e := range got {
			if want := int(e.note.ID) % len(blocks); len(e.note.Blocks) != want {
				t.Fatalf("note %d has %d blocks, want %d", e.note.ID, len(e.note.Blocks), want)
			}
		}
		seen += len(got)
	}
	if seen != int(r.next-r.first) || next != r.end() {
		t.Errorf("read %d notes of %d", seen, int(r.next-r.first))
	}
	r.leave(wake)
	if r.notes != nil || r.blocks != 0 {
		t.Error("notes are kept with nobody to tell any more")
	}
}

// What a note says survives the wire.
func TestNotesSurviveTheWire(t *testing.T) {
	const now = 10 * time.Second
	want := fleet.Note{Kind: fleet.NoteOpen, At: 9 * time.Second, ID: 7, Endpoint: "e", Uncached: 3, Held: 4, PromptBytes: 5, Streamed: true, Cold: true,
		Adapter: "a", Begun: true, Prefilled: true, BegunAt: 9500 * time.Millisecond, Blocks: []uint64{1, 2}, Ends: []int32{1, 3}, UnitBytes: 256,
		MissedKey: 9, Missed: 1.5, Copied: true, Response: "resp_1",
		Loads: true, Alone: true, Session: 1 << 63, Outcome: fleet.Outcome{Ending: fleet.Aborted}}
	ended := fleet.Note{Kind: fleet.NoteEnded, At: now, ID: 7, BegunAt: now - 5*time.Second, Outcome: fleet.Outcome{PromptTokens: 10, OutputTokens: 20}}
	b := newBatch(1, now)
	b.add("m", &want)
	b.add("m", &ended)
	data, err := proto.Marshal(b.told)
	if err != nil {
		t.Fatal(err)
	}
	var told Told
	if err := proto.Unmarshal(data, &told); err != nil {
		t.Fatal(err)
	}
	ended.BegunAt = now + time.Hour // as old as 0 microseconds, on the other's clock
	for i, want := range []fleet.Note{want, ended} {
		want.At += time.Hour
		if i == 0 {
			want.BegunAt += time.Hour
		}
		if got := told.GetNotes()[i].note(&told, now+time.Hour); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if told.named(told.GetNotes()[0].GetPool()) != "m" || told.named(99) != "" {
		t.Error("names were lost")
	}
}

// Whatever comes over the wire, nothing breaks, and when its sender is forgotten nothing is left.
func FuzzHear(f *testing.F) {
	b := newBatch(1, time.Second)
	for _, n := range []fleet.Note{{Kind: fleet.NoteSent, ID: 1, Endpoint: "10.0.0.1:8000", Uncached: 100, Held: 200, Blocks: []uint64{1, 2, 3}, UnitBytes: 256},
		{Kind: fleet.NoteBegun, ID: 1}, {Kind: fleet.NoteEnded, ID: 1}, {Kind: fleet.NoteRecount, ID: 1},
		{Kind: fleet.NoteOpen, ID: 1, Endpoint: "10.0.0.2:8000", Uncached: 100, Held: 200, Begun: true}, {Kind: fleet.NoteHolds, Endpoint: "10.0.0.1:8000",
			Blocks: []uint64{4}, Ends: []int32{9}, UnitBytes: 256}, {Kind: fleet.NoteStored, Endpoint: "10.0.0.1:8000", Response: "resp_1"}} {
		b.add("m", &n)
	}
	data, err := proto.Marshal(b.told)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		var told Told
		counted := countNotes(data)
		if proto.Unmarshal(data, &told) != nil {
			return
		}
		if many := len(told.GetNotes()) > maxNotes || len(told.GetNames()) > maxNotes; many != (counted != nil) {
			t.Fatalf("%d notes: got %v", len(told.GetNotes()), counted)
		}
		var all fleet.Fleet
		all.Apply(config(), "")
		hear(&all, "x", &told, time.Minute)
		hear(&all, "x", &told, time.Minute)
		all.Forget("x")
		for _, s := range all.Pools()[0].Status(time.Minute) {
			if s.BacklogTokens != 0 || s.Prefilling != 0 {
				t.Errorf("something is left: %+v", s)
			}
		}
	})
}

// What a thousand notes cost to hear, from the wire to the counts.
func BenchmarkHearThousand(b *testing.B) {
	blocks := make([]uint64, 64)
	for i := range blocks {
		blocks[i] = uint64(i + 1)
	}
	var all fleet.Fleet
	all.Apply(config(), "")
	id := uint64(0)
	for b.Loop() {
		b.StopTimer()
		out := newBatch(1, time.Second)
		for range 333 {
			id++
			for _, n := range []fleet.Note{{Kind: fleet.NoteSent, ID: id, Endpoint: "10.0.0.1:8000", Uncached: 4000, Held: 4200, Blocks: blocks, UnitBytes: 256, Streamed: true},
				{Kind: fleet.NoteBegun, ID: id}, {Kind: fleet.NoteEnded, ID: id}} {
				out.add("m", &n)
			}
		}
		data, err := proto.Marshal(out.told)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		var told Told
		if err := proto.Unmarshal(data, &told); err != nil {
			b.Fatal(err)
		}
		hear(&all, "x", &told, time.Minute)
	}
}

// What a note costs the pick that tells it.
func BenchmarkTell(b *testing.B) {
	var r record
	wake := make(chan struct{}, 1)
	r.join(wake)
	n := fleet.Note{Kind: fleet.NoteSent, Endpoint: "10.0.0.1:8000", Blocks: make([]uint64, 64), UnitBytes: 256}
	b.ReportAllocs()
	for b.Loop() {
		r.add("m", &n)
	}
}

// Replicas that start together find each other away at first: that is a warning only once it lasts, and none of certificates.
func TestAPeerThatIsAwayForLongIsWarnedOf(t *testing.T) {
	l := listen(t)
	at := l.Addr().String()
	_ = l.Close() // nobody listens there now
	var log buffer
	var now atomic.Int64
	a := newAuthority(t)
	p := New(new(fleet.Fleet), Options{Now: func() time.Duration { return time.Duration(now.Load()) }, Log: slog.New(slog.NewTextHandler(&log, nil)), TLS: identity(t, a, a)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.talk(ctx, fleet.Endpoint{Name: at, Host: at}) }()
	defer func() { cancel(); <-ended }()
	until := func(level string) string {
		for {
			text := log.String()
			if strings.Contains(text, level) {
				return text
			}
			runtime.Gosched()
		}
	}
	if text := until("level=INFO"); strings.Contains(text, "level=WARN") {
		t.Errorf("got a warning at once:\n%s", text)
	}
	now.Store(int64(awayFor))
	if text := until("level=WARN"); strings.Count(text, "peer is not told") != 2 {
		t.Errorf("got\n%s\nwant one line at first and one warning", text)
	} else if strings.Contains(text, "certificates") {
		t.Errorf("got\n%s\nwant nothing of certificates: nobody is there", text)
	}
}
