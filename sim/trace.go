package sim

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
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

// ReadTrace reads a trace: of Mooncake (FAST'25) where it begins with a brace, else of the Azure LLM inference data
// set. Mooncake's is a line of JSON for each request, with its time in milliseconds, its lengths in tokens and the ids
// of its 512-token blocks. Azure's is a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens: nothing
// is known of what its prompts share, so nothing is shared. Requests come in order of arrival; speed makes the times
// run that many times as fast. The seed decides where in Mooncake's coarse ticks a request arrives.
func ReadTrace(r io.Reader, speed float64, seed uint64) ([]Request, error) {
	t, err := parseTrace(r)
	if err != nil {
		return nil, err
	}
	return t.draw(speed, seed)
}

// trace is a trace as it was read: many seeds can be drawn from it.
type trace struct {
	requests []Request
	tick     time.Duration // within which its times say nothing
}

func parseTrace(r io.Reader) (*trace, error) {
	in := bufio.NewReader(r)
	if first, err := in.Peek(1); err == nil && (first[0] == '{' || first[0] == '\n') {
		requests, err := readMooncake(in)
		return &trace{requests, traceTick}, err
	}
	requests, err := readAzure(in)
	return &trace{requests, 0}, err
}

// draw makes the requests of a seed, so many times as fast.
func (t *trace) draw(speed float64, seed uint64) ([]Request, error) {
	if !(speed > 0) || math.IsInf(speed, 1) {
		return nil, fmt.Errorf("cannot read trace: speed %v is not above 0", speed)
	}
	rng := rand.New(rand.NewPCG(seed, 7))
	out := slices.Clone(t.requests)
	for i := range out {
		at := float64(out[i].At)
		if t.tick > 0 {
			at += rng.Float64() * float64(t.tick)
		}
		out[i].At = time.Duration(min(at/speed, maxTraceMS*float64(time.Millisecond)))
	}
	slices.SortStableFunc(out, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return out, nil
}

func readMooncake(r io.Reader) ([]Request, error) {
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
			return nil, fmt.Errorf("cannot read trace line %d: %w", n, jsonFault(err))
		}
		tokens := line.InputLength
		if line.Timestamp < 0 || line.Timestamp > maxTraceMS || tokens < 1 || tokens > maxTraceTokens || line.OutputLength > maxTraceTokens {
			return nil, fmt.Errorf("cannot read trace line %d: timestamp %d (want 0 to %d ms), input_length %d (want 1 to %d), output_length %d (want at most %d)",
				n, line.Timestamp, maxTraceMS, tokens, maxTraceTokens, line.OutputLength, maxTraceTokens)
		}
		at := time.Duration(line.Timestamp) * time.Millisecond
		q := Request{At: at, Follows: -1, Reply: mix(1<<32 + uint64(n)), Output: max(line.OutputLength, 1)}
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
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("cannot read trace: %w", err)
	}
	return out, nil
}

func readAzure(r io.Reader) ([]Request, error) {
	rows := csv.NewReader(r)
	rows.ReuseRecord = true
	header, err := rows.Read()
	if err != nil {
		return nil, fmt.Errorf("cannot read trace: neither lines of JSON nor a CSV file: %w", err)
	}
	var columns [3]int
	for i, name := range []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"} {
		if columns[i] = slices.Index(header, name); columns[i] < 0 {
			return nil, fmt.Errorf("cannot read trace line 1: no column %s among %q", name, header)
		}
	}
	var out []Request
	var began time.Time
	for {
		row, err := rows.Read()
		if err == io.EOF {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("cannot read trace: %w", err)
		}
		n, _ := rows.FieldPos(0)
		at, err := azureTime(row[columns[0]])
		prompt, promptErr := azureTokens("ContextTokens", row[columns[1]])
		output, outputErr := azureTokens("GeneratedTokens", row[columns[2]])
		if err := cmp.Or(err, promptErr, outputErr); err != nil {
			return nil, fmt.Errorf("cannot read trace line %d: %w", n, err)
		}
		if len(out) == 0 {
			began = at
		}
		since := at.Sub(began)
		if since < 0 || since > maxTraceMS*time.Millisecond || prompt < 0 || prompt > maxTraceTokens || output < 0 || output > maxTraceTokens {
			return nil, fmt.Errorf("cannot read trace line %d: %v after the first request, lengths %d and %d", n, since, prompt, output)
		}
		reply := mix(1<<32 + uint64(n))
		out = append(out, Request{At: since, Follows: -1, Reply: reply, Output: max(output, 1), Prompt: []Segment{{mix(reply + 1), max(prompt, 1)}}})
	}
}

// azureTime reads a time as the data set of 2023 and, with a zone, that of 2024 write it.
func azureTime(text string) (time.Time, error) {
	t, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		if zoned, zonedErr := time.Parse("2006-01-02 15:04:05Z07:00", text); zonedErr == nil {
			return zoned, nil
		}
		return t, fmt.Errorf("TIMESTAMP %.100q: want a time such as 2023-11-16 18:15:46.68 or 2024-05-10 00:00:00.01+00:00", text)
	}
	return t, nil
}

// azureTokens reads a length.
func azureTokens(column, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s %.100q: want a whole number of tokens", column, text)
	}
	return n, nil
}

// jsonFault says of a line of Mooncake's trace what is wrong with it, in words of the file's format.
func jsonFault(err error) error {
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return fmt.Errorf("not one JSON object: %w", err) // a *json.SyntaxError, which says what is wrong in the text
	}
	field, _, _ := strings.Cut(kind.Field, ".")
	want := "a whole number"
	switch field {
	case "":
		return fmt.Errorf("got %s, want a JSON object with timestamp, input_length, output_length and hash_ids", kind.Value)
	case "timestamp":
		want = "a whole number of milliseconds"
	case "hash_ids":
		want = "a list of whole numbers, none below 0"
	}
	return fmt.Errorf("field %s: got %.100s, want %s", field, kind.Value, want)
}
