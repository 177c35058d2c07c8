package scrape

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// zmtp is one connection of the ZeroMQ message transport protocol 3.0 without security (rfc.zeromq.org/spec/23), from
// the side that dials: as much of it as following and asking one publisher needs. Why it isn't the library's is in
// docs/decisions/0016. One goroutine uses it.
type zmtp struct {
	conn   net.Conn
	r      *bufio.Reader
	frames [][]byte // of the last message, in room that is used again
	stop   func() bool
	// until is when to wait no longer for the next message, zero for never.
	until time.Time
}

// Bounds of a connection. A scheduler's step stores at most some hundred thousand tokens, of five bytes each.
const (
	zmtpHandshake  = 5 * time.Second
	maxFrames      = 8
	maxMessage     = 16 << 20
	keptFrame      = 1 << 20 // of a frame's room, what is kept for the next one
	zmtpReadBuffer = 64 << 10
	// zmtpWhole is how long a message that has begun may take to come whole.
	zmtpWhole = 10 * time.Second
)

// Flags of a frame.
const (
	zmtpMore    = 1
	zmtpLong    = 2
	zmtpCommand = 4
)

var (
	errNotZMTP = errors.New("it does not speak ZMTP 3 without security: no ZeroMQ publisher listens there")
	errZMTP    = errors.New("it breaks the rules of ZMTP")
)

// zmtpSocket names a kind of socket in the handshake.
type zmtpSocket string

const (
	zmtpSub    zmtpSocket = "SUB"
	zmtpDealer zmtpSocket = "DEALER"
)

// dialFunc opens a connection, as net.Dialer.DialContext does.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialZMTP connects a socket of a kind and shakes hands. The connection breaks when ctx ends.
func dialZMTP(ctx context.Context, dial dialFunc, address string, kind zmtpSocket) (*zmtp, error) {
	limited, cancel := context.WithTimeout(ctx, zmtpHandshake)
	defer cancel()
	conn, err := dial(limited, "tcp", address)
	if err != nil {
		return nil, err
	}
	z := &zmtp{conn: conn, r: bufio.NewReaderSize(conn, zmtpReadBuffer)}
	z.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(zmtpHandshake))
	if err := z.shakeHands(kind); err != nil {
		z.close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return z, nil
}

func (z *zmtp) close() {
	z.stop()
	_ = z.conn.Close()
}

// shakeHands exchanges greetings and what the two sockets are. Writing goes beside reading, for a peer whose pipe holds
// nothing.
func (z *zmtp) shakeHands(kind zmtpSocket) error {
	const greetingSize = 64
	out := make([]byte, greetingSize, 2*greetingSize)
	out[0], out[9], out[10] = 0xff, 0x7f, 3
	copy(out[12:], "NULL")
	body := append([]byte("\x05READY\x0bSocket-Type"), 0, 0, 0, byte(len(kind)))
	body = append(body, kind...)
	out = append(append(out, zmtpCommand, byte(len(body))), body...)
	sent := make(chan error, 1)
	go func() {
		_, err := z.conn.Write(out)
		sent <- err
	}()
	err := z.greeted()
	if err != nil {
		_ = z.conn.Close() // ends the writing
	}
	return errors.Join(err, <-sent)
}

// greeted reads the peer's greeting and its READY.
func (z *zmtp) greeted() error {
	var in [64]byte
	if _, err := io.ReadFull(z.r, in[:11]); err != nil {
		return err
	}
	if in[0] != 0xff || in[9]&1 == 0 || in[10] < 3 {
		return errNotZMTP
	}
	if _, err := io.ReadFull(z.r, in[11:]); err != nil {
		return err
	}
	if string(in[12:17]) != "NULL\x00" {
		return errNotZMTP
	}
	flags, size, err := z.header()
	if err != nil {
		return err
	}
	if flags&zmtpCommand == 0 || size > 1<<16 {
		return errNotZMTP
	}
	body, err := z.body(nil, int(size))
	if err != nil {
		return err
	}
	if len(body) < 6 || string(body[:6]) != "\x05READY" {
		return errNotZMTP
	}
	return nil
}

// subscribe asks a publisher for the topics that begin so.
func (z *zmtp) subscribe(topic string) error {
	return z.send(append([]byte{1}, topic...))
}

// send writes one message.
func (z *zmtp) send(frames ...[]byte) error {
	var out []byte
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = zmtpMore
		}
		out = appendFrame(out, flags, f)
	}
	_ = z.conn.SetWriteDeadline(time.Now().Add(zmtpHandshake))
	_, err := z.conn.Write(out)
	return err
}

func appendFrame(out []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		out = binary.BigEndian.AppendUint64(append(out, flags|zmtpLong), uint64(len(body)))
	} else {
		out = append(out, flags, byte(len(body)))
	}
	return append(out, body...)
}

// begun waits for the first byte of a frame, and gives the rest of the message its time.
func (z *zmtp) begun() error {
	_ = z.conn.SetReadDeadline(z.until)
	if _, err := z.r.Peek(1); err != nil {
		return err
	}
	whole := time.Now().Add(zmtpWhole)
	if !z.until.IsZero() && z.until.Before(whole) {
		whole = z.until
	}
	return z.conn.SetReadDeadline(whole)
}

// receive waits for a message and returns its frames, which are good until the next call. It answers heartbeats.
func (z *zmtp) receive() ([][]byte, error) {
	for {
		if err := z.begun(); err != nil {
			return nil, err
		}
		whole, err := z.message()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("%w: a message that does not come whole", errZMTP)
		case err != nil:
			return nil, err
		case whole:
			return z.frames, nil
		}
	}
}

// message reads the frames of a message that has begun; false when a command was there.
func (z *zmtp) message() (bool, error) {
	frames, total := z.frames[:0], 0
	for {
		flags, size, err := z.header()
		if err != nil {
			return false, err
		}
		if size > uint64(maxMessage-total) {
			return false, fmt.Errorf("%w: a message of more than %d bytes", errZMTP, maxMessage)
		}
		if flags&zmtpCommand != 0 {
			if err := z.command(int(size)); err != nil || len(frames) == 0 {
				return false, err
			}
			continue
		}
		if len(frames) == maxFrames {
			return false, fmt.Errorf("%w: a message of more than %d frames", errZMTP, maxFrames)
		}
		var room []byte
		if len(frames) < cap(frames) {
			room = frames[:len(frames)+1][len(frames)]
		}
		if cap(room) > keptFrame {
			room = nil
		}
		body, err := z.body(room, int(size))
		if err != nil {
			return false, err
		}
		frames = append(frames, body)
		total += len(body)
		if flags&zmtpMore == 0 {
			z.frames = frames
			return true, nil
		}
	}
}

// command reads a command, and answers a PING with its context.
func (z *zmtp) command(size int) error {
	body, err := z.body(nil, size)
	if err != nil {
		return err
	}
	const ping, ttl = "\x04PING", 2
	if len(body) < len(ping)+ttl || string(body[:len(ping)]) != ping {
		return nil
	}
	pong := append([]byte("\x04PONG"), body[len(ping)+ttl:]...)
	_ = z.conn.SetWriteDeadline(time.Now().Add(zmtpHandshake))
	_, err = z.conn.Write(appendFrame(nil, zmtpCommand, pong))
	return err
}

// header reads the flags and the size of a frame.
func (z *zmtp) header() (flags byte, size uint64, err error) {
	var h [8]byte
	if flags, err = z.r.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&^(zmtpMore|zmtpLong|zmtpCommand) != 0 {
		return 0, 0, fmt.Errorf("%w: a frame with flags %#x", errZMTP, flags)
	}
	if flags&zmtpLong == 0 {
		b, err := z.r.ReadByte()
		return flags, uint64(b), err
	}
	_, err = io.ReadFull(z.r, h[:])
	return flags, binary.BigEndian.Uint64(h[:]), err
}

// body reads size bytes into the room, which grows with what comes and not with what is announced.
func (z *zmtp) body(room []byte, size int) ([]byte, error) {
	room = room[:0]
	for len(room) < size {
		n := min(size-len(room), 64<<10)
		if cap(room)-len(room) < n {
			room = append(room, make([]byte, n)...)[:len(room)]
		}
		if _, err := io.ReadFull(z.r, room[len(room):len(room)+n]); err != nil {
			return nil, err
		}
		room = room[:len(room)+n]
	}
	return room, nil
}
