package front

// Objective is a priority that requests of a pool may name.
type Objective struct {
	// Name is how requests name it, Pool the name of the pool.
	Name, Pool string
	// Priority is higher for what is more urgent; requests without an objective have 0.
	Priority int64
}

// poolObjective is an objective by what it is found by.
type poolObjective struct{ pool, name string }

// objectivesOf makes objectives ready for looking up.
func objectivesOf(list []Objective) map[poolObjective]int64 {
	if len(list) == 0 {
		return nil
	}
	m := make(map[poolObjective]int64, len(list))
	for _, o := range list {
		m[poolObjective{o.Pool, o.Name}] = o.Priority
	}
	return m
}

// objective finds the priority that the request names. How urgent a request is, clients say of themselves, so that only those are
// heard whose headers are trusted; a name that nobody has configured is as good as none.
func (r *Request) objective() {
	if !r.set.TrustHeaders || r.set.objectives == nil {
		return
	}
	name := r.header.Get(HeaderObjective)
	if name == "" {
		name = r.header.Get(headerOlderObjective)
	}
	if priority, ok := r.set.objectives[poolObjective{r.Pool.Name(), name}]; ok {
		r.Objective, r.Priority = name, priority
	}
}
