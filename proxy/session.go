package proxy

import (
	"crypto/rand"
	"hash/maphash"
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
func (c *call) session() {
	s, ok := c.set.Sessions[c.pool.Name()]
	if !ok {
		return
	}
	id := ""
	if s.Header != "" {
		id = c.r.Header.Get(s.Header)
	}
	if id == "" && s.Cookie != "" {
		if cookie, err := c.r.Cookie(s.Cookie); err == nil {
			id = cookie.Value
		}
		if id == "" || len(id) > maxSession {
			id = rand.Text()
			c.cookie = &http.Cookie{Name: s.Cookie, Value: id, Path: "/", HttpOnly: true, Secure: c.r.TLS != nil, SameSite: http.SameSiteLaxMode}
		}
	}
	if id != "" && len(id) <= maxSession {
		c.want.Session = maphash.String(c.g.sessionSeed, id) | 1
	}
}
