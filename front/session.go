package front

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"net/http"
)

// SessionSource says where a client's session is told. A header, where both are set and a request has it, wins.
type SessionSource struct {
	// Header and Cookie are names, empty for none.
	Header, Cookie string
}

// maxSession is the longest session id that is taken, in bytes. A longer one is as good as none.
const maxSession = 512

// session finds the request's session and hashes it: ids are the clients' own, and must get nowhere else. Where there is a
// cookie to tell it and the request has none, a new one is made up, which the answer sets.
func (r *Request) session() {
	s, ok := r.set.Sessions[r.Pool.Name()]
	if !ok {
		return
	}
	id := ""
	if s.Header != "" {
		id = r.header.Get(s.Header)
	}
	if id == "" && s.Cookie != "" {
		if cookie, err := (&http.Request{Header: r.header}).Cookie(s.Cookie); err == nil {
			id = cookie.Value
		}
		if id == "" || len(id) > maxSession {
			id = rand.Text()
			r.Cookie = &http.Cookie{Name: s.Cookie, Value: id, Path: "/", HttpOnly: true, Secure: r.Secure, SameSite: http.SameSiteLaxMode}
		}
	}
	if id != "" && len(id) <= maxSession {
		r.Want.Session = hashSession(id)
	}
}

// hashSession is never 0. All replicas have to agree in it, so that it has no key; what keeps a client from making up an id that is taken for
// another's is that nobody can turn SHA-256 around.
func hashSession(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint64(sum[:]) | 1
}
