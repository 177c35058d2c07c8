package route

import (
	"fmt"
	"io"
	"strings"
)

// maxDifferences is how many differences a Summary describes; the others are only counted.
const maxDifferences = 5

// Summary is what a replay of records comes to.
type Summary struct {
	// Profile names the profile that decided again, empty when each record's own did.
	Profile string
	// Records counts the records that were decided again; Unreadable the lines that could not be used, of which
	// FirstError is the first.
	Records, Unreadable int
	FirstError          error
	// NoEndpoint counts the records for which there is no endpoint under the profile.
	NoEndpoint int
	// Differ counts the records that go to another endpoint, or to none, or no longer to none.
	Differ int
	// Drifted counts, in a replay under the records' own profiles, those that go to the same endpoint by a Decision
	// that differs elsewhere: another total, other fallbacks. It is 0 unless the code has changed.
	Drifted int
	// First describes the first few that differ.
	First []Difference
}

// Difference is one record that is decided otherwise.
type Difference struct {
	ID string
	// Was and Is are the endpoints, empty for none.
	Was, Is string
	// WasTotal is the recorded total, in the unit of the profile that made it.
	WasTotal float32
	// WasNow and IsNow are the totals of both endpoints under the profile of the replay. WasNow means nothing unless
	// WasKept: the endpoint that was chosen passes the filters of the replay.
	WasNow, IsNow float32
	WasKept       bool
	// Unit is the unit of WasNow and IsNow, empty for scores.
	Unit string
}

// Replay decides every record in r, one a line, again: under p, or each under its own profile when p is nil. A line
// that is damaged is counted and skipped. The error is r's.
func Replay(r io.Reader, p *Profile) (*Summary, error) {
	s := new(Summary)
	if p != nil {
		s.Profile = p.Name
	}
	err := EachRecord(r, func(record *Record) error { return s.decide(record, p) }, func(n int, bad error) {
		s.Unreadable++
		if s.FirstError == nil {
			s.FirstError = fmt.Errorf("cannot replay line %d: %w", n, bad)
		}
	})
	return s, err
}

// decide replays one record.
func (s *Summary) decide(record *Record, p *Profile) (err error) {
	own := p == nil
	if own {
		if p, err = record.OwnProfile(); err != nil {
			return err
		}
	}
	v, was := &record.View, record.Decision
	is := p.Decide(v)
	s.Records++
	if is.Verdict != Send {
		s.NoEndpoint++
	}
	if is.Endpoint == was.Endpoint {
		if own && is != was {
			s.Drifted++
		}
		return nil
	}
	s.Differ++
	if len(s.First) == maxDifferences {
		return nil
	}
	d := Difference{ID: record.ID, WasTotal: was.Total, IsNow: is.Total, Unit: p.Unit}
	if is.Endpoint >= 0 {
		d.Is = v.Snapshot.Names[is.Endpoint]
	}
	if was.Endpoint >= 0 {
		d.Was = v.Snapshot.Names[was.Endpoint]
		d.WasNow, d.WasKept = v.total[was.Endpoint], v.keep[was.Endpoint]
	}
	s.First = append(s.First, d)
	return nil
}

// WriteText writes the summary for people.
func (s *Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	under := "profile " + s.Profile
	if s.Profile == "" {
		under = "their own profiles"
	}
	fmt.Fprintf(&b, "%d records decided again under %s: %d differ, %d have no endpoint", s.Records, under, s.Differ, s.NoEndpoint)
	if s.Drifted > 0 {
		fmt.Fprintf(&b, ", %d go to the same endpoint by another total or with other fallbacks", s.Drifted)
	}
	b.WriteString("\n")
	if s.Unreadable > 0 {
		fmt.Fprintf(&b, "%d lines skipped; the first: %s\n", s.Unreadable, printable(s.FirstError.Error()))
	}
	if len(s.First) > 0 {
		rows := [][]string{{"request", "was", "is", "recorded total", "its total here", "total of is", ""}}
		for _, d := range s.First {
			rows = append(rows, d.row())
		}
		b.WriteString("\n")
		writeTable(&b, rows)
		if more := s.Differ - len(s.First); more > 0 {
			fmt.Fprintf(&b, "and %d more\n", more)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// row is the difference as a row of the table; the recorded total has no unit, since its profile may be another.
func (d *Difference) row() []string {
	was, is, here, now := "none", "none", "left out", "-"
	recorded := "-"
	if d.Was != "" {
		was, recorded = printable(d.Was), fmt.Sprintf("%.3f", d.WasTotal)
	} else {
		here = "-"
	}
	if d.WasKept {
		here = d.total(d.WasNow)
	}
	if d.Is != "" {
		is, now = printable(d.Is), d.total(d.IsNow)
	}
	return []string{printable(d.ID), was, is, recorded, here, now, ""}
}

func (d *Difference) total(x float32) string {
	return strings.TrimRight(fmt.Sprintf("%.3f %s", x, d.Unit), " ")
}
