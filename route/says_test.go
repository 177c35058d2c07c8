package route

import (
	"strings"
	"testing"
)

// What the page shows is what the command prints: the sentences are the text's last paragraph, the marks its last
// column.
func TestSentencesAndMarksAreThoseOfTheText(t *testing.T) {
	v := evenView(3)
	v.Expected, v.Known = Column{512, 96, 0}, []Known{Exact, AtLeast, Guessed}
	v.Snapshot.States[2], v.Snapshot.Why[2] = NotReady, "connection\x1b refused"
	e := Latency().Explain(v)
	var b strings.Builder
	if err := e.WriteText(&b, v); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if want := "\n\n" + strings.Join(e.Sentences(v), "\n") + "\n"; !strings.HasSuffix(text, want) {
		t.Errorf("the text doesn't end with the sentences %q:\n%s", want, text)
	}
	if got := e.LeftOut(v, 2); got != "not ready: connection? refused" || e.LeftOut(v, 0) != "" {
		t.Errorf("got %q left out, want the filter's words, the reason, and nothing that moves a cursor", got)
	}
	for i, want := range []string{"512 exact", "96 at least", "0 guessed"} {
		if !strings.Contains(text, want) {
			t.Errorf("endpoint %d: the text lacks %q", i, want)
		}
		for _, line := range strings.Split(text, "\n") {
			if marks := strings.Join(e.Marks(i), ", "); strings.HasPrefix(line, v.Snapshot.Names[i]+" ") && strings.Contains(line, " ms ") && !strings.HasSuffix(line, marks) {
				t.Errorf("got marks %q beside the line %q", marks, line)
			}
		}
	}
	if !strings.Contains(text, "of the prompt's tokens in its cache") {
		t.Errorf("the text doesn't say what the chosen one should find:\n%s", text)
	}
}
