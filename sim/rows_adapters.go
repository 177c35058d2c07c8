package sim

import (
	"fmt"
	"time"
)

// RowsL lists fleets with more adapters than slots for them: near at hand, and loaded from afar.
func RowsL() []Row {
	var rows []Row
	for _, x := range []struct {
		rate float64
		load time.Duration
	}{{40, 50 * time.Millisecond}, {40, 500 * time.Millisecond}, {80, 50 * time.Millisecond}} {
		fleet := engines("l8-h100", 8)
		for i := range fleet {
			fleet[i].AdapterSlots, fleet[i].AdapterLoad = 4, x.load
		}
		var adapters []string
		for i := range 40 {
			adapters = append(adapters, fmt.Sprintf("adapter-%d", i))
		}
		rows = append(rows, Row{Name: fmt.Sprintf("8×H100, 8B, 40 adapters in 8×4 slots, %v to load, %.0f req/s", x.load, x.rate), Engines: fleet,
			Requests: Mix{Rate: Steady(x.rate), Prompt: Length{600, .8}, Output: Length{200, .8}, Adapters: adapters}.Generate})
	}
	return numbered("L", rows)
}
