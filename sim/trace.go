package sim

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// traceBlock is how many tokens a block of a trace stands for.
	traceBlock = 512
	// traceTick is how coarse a trace's times are: within it they are spread by the seed.
	traceTick = 3 * time.Second
	// maxTraceTokens bounds lengths, so that a bad line is an error and not a request for all memory.
	maxTraceTokens = 1 << 24
	maxTraceMS     = 1 << 40
)

// ReadTrace reads a trace in the format of Mooncake (FAST'25): a line of JSON for each request, with its time in milliseconds, its lengths in
// tokens and the ids of its 512-token blocks. speed makes the times run that many times as fast.
func ReadTrace(r io.Reader, speed float64, seed uint64) ([]Request, error) {
	if !(speed > 0) {
		return nil, fmt.Errorf("cannot read trace: speed %v is not above 0", speed)
	}
	rng := rand.New(rand.NewPCG(seed, 7))
	var out []Request
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<24)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var line struct {
			Timestamp    int64    `json:"timestamp"`
			InputLength  int      `json:"input_length"`
			OutputLength int      `json:"output_length"`
			HashIDs      []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("cannot read trace line %d: %w", n, err)
		}
		tokens := line.InputLength
		if line.Timestamp < 0 || line.Timestamp > maxTraceMS || tokens < 1 || tokens > maxTraceTokens || line.OutputLength > maxTraceTokens {
			return nil, fmt.Errorf("cannot read trace line %d: time %d ms, lengths %d and %d", n, line.Timestamp, tokens, line.OutputLength)
		}
		at := time.Duration(line.Timestamp)*time.Millisecond + time.Duration(rng.Float64()*float64(traceTick))
		q := Request{At: time.Duration(float64(at) / speed), Follows: -1, Reply: mix(seed<<32 + uint64(n)), Output: max(line.OutputLength, 1)}
		for _, id := range line.HashIDs {
			if tokens > 0 {
				q.Prompt = append(q.Prompt, Segment{mix(id + 1), min(tokens, traceBlock)})
				tokens -= min(tokens, traceBlock)
			}
		}
		if tokens > 0 { // what no block describes is nobody else's
			q.Prompt = append(q.Prompt, Segment{mix(q.Reply + 1), tokens})
		}
		out = append(out, q)
	}
	slices.SortStableFunc(out, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("cannot read trace: %w", err)
	}
	return out, nil
}
