package front

import (
	"strings"
	"testing"
)

func FuzzResponseID(f *testing.F) {
	f.Add([]byte(`{"id":"resp_1","object":"response"}`))
	f.Add([]byte("event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\": \"resp_ab\"}}\n\n"))
	f.Add([]byte(`{"output":[{"id":"msg_1"}],"id":"resp_2`))
	f.Fuzz(func(t *testing.T, p []byte) {
		if id := responseID(p); id != "" && !strings.Contains(string(p), `"`+id+`"`) {
			t.Errorf("got %q, which %q does not hold", id, p)
		}
	})
}
