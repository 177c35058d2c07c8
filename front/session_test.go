package front

import "testing"

// Replicas tell each other of sessions by hash.
func TestSessionsHashAlikeEverywhere(t *testing.T) {
	if got := hashSession("one"); got != 0x7692c3ad3540bb81 {
		t.Errorf("got %#x, want the beginning of its SHA-256", got)
	}
}
