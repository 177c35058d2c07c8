package sim

import (
	"testing"
	"time"
)

// Gateways that tell each other what they do find prefixes as one does; those that share nothing don't.
func TestSharingReplicasDecideLikeOne(t *testing.T) {
	rows, err := SelectRows([]string{"B2"})
	if err != nil {
		t.Fatal(err)
	}
	row := rows[0]
	run := func(replicas int, share bool) figures {
		const length = 60 * time.Second
		return Run(Options{Engines: row.Engines, Requests: row.Requests(1, length), Policy: Latency(), Replicas: replicas, Share: share, Labels: true,
			Warm: warmUp, Until: length, End: length + drainFor, Seed: 1}).figures(DefaultObjective())
	}
	one, three, apart := run(1, false), run(3, true), run(3, false)
	if got, want := three.of[Hits], one.of[Hits]; got < want-.01 {
		t.Errorf("three that share find %.1f %% of the tokens in caches, one %.1f %%", 100*got, 100*want)
	}
	if got, want := three.of[MeanTTFT], one.of[MeanTTFT]; got > 1.1*want {
		t.Errorf("three that share have a mean TTFT of %.4f s, one %.4f s", got, want)
	}
	if apart.of[Hits] > one.of[Hits]-.02 {
		t.Errorf("three that share nothing find %.1f %%: the test shows nothing", 100*apart.of[Hits])
	}
}
