package extproc

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec reads and writes the messages of this room by hand, because bodies make up nearly all of them: the generated
// types copy each body twice, which costs as much again as all that is done with it. All other messages are gRPC's own.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Marshal writes an answer.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*answer); ok {
		return a.encode(), nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal reads a message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*message); ok {
		return m.decode(data)
	}
	return c.CodecV2.Unmarshal(data, v)
}
