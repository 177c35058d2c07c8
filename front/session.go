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

// session finds the request's session and hashes it: ids are the clients' own, and must get nowhere else.
func (r *Request) session() {
	if id := r.sessionID(r.Pool.Name()); id != "" {
		r.Want.Session = hashSession(id)
	}
}

// sessionID is the id of the request's session as the pool has it told, empty for none. Where there is a cookie to tell
// it and the request has none, a new one is made up, which the answer sets.
func (r *Request) sessionID(pool string) string {
	s := r.set.Sessions[pool]
	id := ""
	if s.Header != "" {
		id = r.header.Get(s.Header)
	}
	if id == "" && s.Cookie != "" {
		id = r.cookieID(s.Cookie)
	}
	if len(id) > maxSession {
		return ""
	}
	return id
}

func (r *Request) cookieID(name string) string {
	if cookie, err := (&http.Request{Header: r.header}).Cookie(name); err == nil && cookie.Value != "" && len(cookie.Value) <= maxSession {
		return cookie.Value
	}
	if r.Cookie == nil { // else the pool that the request was matched at has made one up
		r.Cookie = &http.Cookie{Name: name, Value: rand.Text(), Path: "/", HttpOnly: true, Secure: r.Secure, SameSite: http.SameSiteLaxMode}
	}
	return r.Cookie.Value
}

// hashSession is never 0. All replicas have to agree in it, so that it has no key; what keeps a client from making up
// an id that is taken for another's is that nobody can turn SHA-256 around.
func hashSession(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint64(sum[:]) | 1
}
