package sim

type publisher struct{}

func (s *Server) openEvents() error { return nil }
func (s *Server) closeEvents()      {}
func (s *Server) restartEvents()    {}
func (s *Server) publish()          {}
func (s *Server) publishCleared()   {}

// KVEvents is the address that events of the KV cache are published on, empty for none.
func (s *Server) KVEvents() string { return "" }
