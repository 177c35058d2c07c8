package sim

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"net/http"
	"strconv"
)

// embeddingSize is how many numbers an embedding has if the request doesn't say.
const embeddingSize = 256

// embedding computes one vector for each input; each is a sequence of its own in the engine.
func (s *Server) embedding(w http.ResponseWriter, r *http.Request) {
	var body bodyOf
	if !readJSON(w, r, &body) {
		return
	}
	inputs, err := readPrompts(body.Input)
	if err != nil || body.Dimensions < 0 || body.Dimensions > 1<<14 {
		message := "dimensions are out of range"
		if err != nil {
			message = err.Error()
		}
		badRequest(w, "input", message)
		return
	}
	size := body.Dimensions
	if size == 0 {
		size = embeddingSize
	}
	var all []*generation
	defer func() {
		for _, g := range all {
			s.release(g.call)
		}
	}()
	one := 1
	for _, input := range inputs {
		g, ok := s.begin(w, r, &body, func(dst []uint32) ([]uint32, error) { return append(dst, input...), nil }, &one, false)
		if !ok {
			return
		}
		all = append(all, g)
	}
	b, tokens := []byte(nil), int64(0)
	for i, g := range all {
		if !g.finish(r) {
			return
		}
		if i == 0 {
			b = append(b, `{"id":"embd-`+g.id+`","object":"list","created":`+g.created+`,"model":`+string(quote(g.model))+`,"data":[`...)
		} else {
			b = append(b, ',')
		}
		b = append(strconv.AppendInt(append(b, `{"index":`...), int64(i), 10), `,"object":"embedding","embedding":`...)
		b = append(appendVector(b, g.answer.seed, size, body.EncodingFormat == "base64"), '}')
		tokens += int64(g.seq.Prompt)
	}
	b = strconv.AppendInt(append(b, `],"usage":{"prompt_tokens":`...), tokens, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), tokens, 10)
	writeJSON(w, http.StatusOK, append(b, `,"completion_tokens":0,"prompt_tokens_details":null}}`...))
}

// appendVector writes a vector of length 1 that the seed decides.
func appendVector(dst []byte, seed uint64, size int, encoded bool) []byte {
	vector, square := make([]float64, size), 0.
	for i := range vector {
		vector[i] = float64(int32(mix(seed+uint64(i)+1))) / (1 << 31)
		square += vector[i] * vector[i]
	}
	raw := make([]byte, 0, 4*size)
	if !encoded {
		dst = append(dst, '[')
	}
	for i, x := range vector {
		x /= math.Sqrt(square)
		if encoded {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(x)))
			continue
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendFloat(dst, x, 'g', -1, 32)
	}
	if !encoded {
		return append(dst, ']')
	}
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), raw), '"')
}
