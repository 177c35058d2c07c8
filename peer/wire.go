package peer

import (
	"math"
	"time"

	"github.com/sluice-gateway/sluice/fleet"
)

// batch makes a message of notes.
type batch struct {
	told  *Told
	names map[string]uint32
	now   time.Duration
}

func newBatch(seq uint64, now time.Duration) *batch {
	return &batch{told: &Told{Seq: seq}, names: make(map[string]uint32), now: now}
}

// name is the number of a name.
func (b *batch) name(s string) uint32 {
	if s == "" {
		return 0
	}
	n, ok := b.names[s]
	if !ok {
		b.told.Names = append(b.told.Names, s)
		n = uint32(len(b.told.Names))
		b.names[s] = n
	}
	return n
}

// age is how long ago a time was, in microseconds.
func (b *batch) age(at time.Duration) uint64 { return uint64(max(b.now-at, 0).Microseconds()) }

// add appends a note, whose slices the message then shares.
func (b *batch) add(pool string, n *fleet.Note) {
	w := &Note{Kind: uint32(n.Kind), Pool: b.name(pool), Endpoint: b.name(n.Endpoint), AgeMicros: b.age(n.At), Id: n.ID,
		Uncached: n.Uncached, Held: n.Held, PromptBytes: uint64(max(n.PromptBytes, 0)), Streamed: n.Streamed, Cold: n.Cold,
		Adapter: b.name(n.Adapter), Begun: n.Begun, Prefilled: n.Prefilled, Blocks: n.Blocks, Ends: n.Ends,
		UnitBytes: uint32(max(n.UnitBytes, 0)), MissedKey: n.MissedKey, Missed: n.Missed, Copied: n.Copied, Response: n.Response,
		Loads: n.Loads, Alone: n.Alone, Session: n.Session}
	if n.Begun {
		w.BegunAgeMicros = b.age(n.BegunAt)
	}
	if n.Kind == fleet.NoteEnded && n.Outcome.Ending == fleet.Finished {
		w.Finished = true
		w.PromptTokens, w.OutputTokens = uint64(max(n.Outcome.PromptTokens, 0)), uint64(max(n.Outcome.OutputTokens, 0))
	}
	b.told.Notes = append(b.told.Notes, w)
}

const (
	// maxAge bounds how long ago something can have happened: requests that are open for longer are as good as new.
	maxAge = 24 * time.Hour
	// maxNumber bounds sizes.
	maxNumber = math.MaxInt32
)

// hear gives the notes of a message to the fleet, pool by pool. Numbers of names that the message has not are empty names,
// whose notes the fleet ignores.
func hear(f *fleet.Fleet, peer string, told *Told, now time.Duration) {
	var notes []fleet.Note
	pool := ""
	flush := func() {
		if len(notes) > 0 {
			f.Hear(peer, pool, notes)
			notes = notes[:0]
		}
	}
	for _, w := range told.GetNotes() {
		if name := told.named(w.GetPool()); name != pool {
			flush()
			pool = name
		}
		notes = append(notes, w.note(told, now))
	}
	flush()
}

// named is what a number of a name means.
func (x *Told) named(n uint32) string {
	if names := x.GetNames(); n > 0 && int(n) <= len(names) {
		return names[n-1]
	}
	return ""
}

// note is the fleet's form of a note, on the clock on which it is now.
func (x *Note) note(told *Told, now time.Duration) fleet.Note {
	at := func(age uint64) time.Duration {
		return now - time.Duration(min(age, uint64(maxAge.Microseconds())))*time.Microsecond
	}
	n := fleet.Note{Kind: fleet.NoteKind(min(x.GetKind(), math.MaxUint8)), At: at(x.GetAgeMicros()), ID: x.GetId(), Endpoint: told.named(x.GetEndpoint()),
		Uncached: x.GetUncached(), Held: x.GetHeld(), PromptBytes: size(x.GetPromptBytes()), Streamed: x.GetStreamed(), Cold: x.GetCold(),
		Adapter: told.named(x.GetAdapter()), Begun: x.GetBegun(), Prefilled: x.GetPrefilled(), BegunAt: at(x.GetBegunAgeMicros()),
		Blocks: x.GetBlocks(), Ends: x.GetEnds(), UnitBytes: size(uint64(x.GetUnitBytes())), MissedKey: x.GetMissedKey(), Missed: x.GetMissed(),
		Copied: x.GetCopied(), Response: x.GetResponse(), Loads: x.GetLoads(), Alone: x.GetAlone(), Session: x.GetSession(),
		Outcome: fleet.Outcome{Ending: fleet.Aborted, PromptTokens: size(x.GetPromptTokens()), OutputTokens: size(x.GetOutputTokens())}}
	if x.GetFinished() {
		n.Outcome.Ending = fleet.Finished
	}
	return n
}

func size(n uint64) int { return int(min(n, maxNumber)) }
