package openai

import (
	"bufio"
	"compress/flate"
	"compress/zlib"
	"errors"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory of a zstd decoder: what RFC 8878 asks every decoder to support. Brotli's own bound is 16
// MiB, the others' 32 KiB.
const maxWindow = 8 << 20

// decoded returns what a body says, held for the caller (release it): the body itself where it is not encoded or empty
// (an empty one is no fault, whatever coding it claims), otherwise a new Body under the same limit and budget, so that
// a small body can't unpack without bound.
func decoded(contentEncoding string, b *Body) (*Body, error) {
	coding := strings.ToLower(strings.TrimSpace(contentEncoding))
	if coding == "" || coding == "identity" || b.size == 0 {
		if !b.hold() {
			return nil, Internal.Errorf("the request body is gone")
		}
		return b, nil
	}
	b.budget.startDecoding() // the body is here whole, so that nobody is waited for who holds a place
	defer b.budget.endDecoding()
	src := b.Reader()
	defer func() { _ = src.Close() }()
	buffered := bufio.NewReader(src)
	r, err := b.budget.decoder(coding, buffered)
	var e *Error
	if errors.As(err, &e) {
		return nil, err
	}
	var d *Body
	if err == nil {
		d, err = ReadBody(r, -1, b.limit, b.budget)
		b.budget.recycle(r)
	}
	if err == nil {
		// Text after the end of the stream: some readers pass over it, some refuse it.
		if _, end := buffered.Peek(1); end == nil {
			d.Free()
			return nil, InvalidRequest.Errorf("the request body goes on after its %s stream", coding)
		}
	}
	switch {
	case err == nil:
		return d, nil
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrBudget):
		return nil, AsError(err)
	}
	return nil, InvalidRequest.Errorf("the request body is not valid %s", coding)
}

func (b *Budget) decoder(coding string, r *bufio.Reader) (io.Reader, error) {
	switch coding {
	case "gzip", "x-gzip":
		return gzip.NewReader(r)
	case "deflate":
		return inflater(r)
	case "br":
		return brotli.NewReader(r), nil
	case "zstd":
		return b.unzstd(r)
	}
	e := UnsupportedMedia.Errorf("Content-Encoding must be one of gzip, deflate, br, zstd or identity, and only one")
	e.Param = "Content-Encoding"
	return nil, e
}

// unzstd takes a decoder that has its window already, if there is one: making one costs more than most bodies.
func (b *Budget) unzstd(r io.Reader) (io.Reader, error) {
	if b != nil {
		if d, ok := b.unzstds.Get().(*zstd.Decoder); ok {
			return d, d.Reset(r)
		}
	}
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
}

// recycle takes back what decoder returned. Without a budget it is left to the garbage collector: with a concurrency of
// one it has no goroutine to end.
func (b *Budget) recycle(r io.Reader) {
	d, ok := r.(*zstd.Decoder)
	if b == nil || !ok {
		return
	}
	_ = d.Reset(nil) // lets go of the body
	b.unzstds.Put(d)
}

// inflater reads deflate as the standard means it (zlib) and as some clients send it (without the two bytes of header).
func inflater(r *bufio.Reader) (io.Reader, error) {
	head, err := r.Peek(2)
	if err != nil {
		return nil, err
	}
	if head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		return zlib.NewReader(r)
	}
	return flate.NewReader(r), nil
}
