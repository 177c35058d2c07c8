package peer

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec is gRPC's own, but for messages that would take far more memory than bytes: an empty note is 2 bytes of a message
// and half a kilobyte once it is read.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Unmarshal reads a message that has few enough notes and names.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if _, ok := v.(*Told); !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	if err := countNotes(whole.ReadOnlyData()); err != nil {
		return err
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{whole}, v)
}

// countNotes reports an error if a message of the type Told has too many notes or names, or can't be read.
func countNotes(p []byte) error {
	const names, notes = 3, 4 // the numbers of the fields
	var count [notes + 1]int
	for len(p) > 0 {
		field, _, n := protowire.ConsumeField(p)
		if n < 0 {
			return fmt.Errorf("cannot follow peer: its message can't be read: %w", protowire.ParseError(n))
		}
		p = p[n:]
		if field != names && field != notes {
			continue
		}
		if count[field]++; count[field] > maxNotes {
			return fmt.Errorf("cannot follow peer: a message has more than %d notes, at most so many are heard", maxNotes)
		}
	}
	return nil
}
