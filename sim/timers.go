package sim

// timers is a heap of what will happen, the next first.
type timers struct {
	heap  []timer
	order uint64
}

func (t *timers) before(i, j int) bool {
	a, b := &t.heap[i], &t.heap[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}

func (t *timers) push(x timer) {
	t.order++
	x.order = t.order
	t.heap = append(t.heap, x)
	for i := len(t.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !t.before(i, parent) {
			return
		}
		t.heap[i], t.heap[parent] = t.heap[parent], t.heap[i]
		i = parent
	}
}

func (t *timers) pop() timer {
	top, n := t.heap[0], len(t.heap)-1
	t.heap[0] = t.heap[n]
	t.heap = t.heap[:n]
	for i := 0; ; {
		least := 2*i + 1
		if least >= n {
			return top
		}
		if least+1 < n && t.before(least+1, least) {
			least++
		}
		if !t.before(least, i) {
			return top
		}
		t.heap[i], t.heap[least] = t.heap[least], t.heap[i]
		i = least
	}
}
