package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/sluice-gateway/sluice/sim"
)

// calibrate prints how far simulated engines are from the measured ones of a file.
func calibrate(ctx context.Context, o *benchOptions, out io.Writer) error {
	f, err := os.Open(o.calibration)
	if err != nil {
		return fmt.Errorf("cannot read points: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	c, err := sim.Calibrate(ctx, f)
	if err != nil {
		return fmt.Errorf("cannot calibrate with %q: %w", o.calibration, err)
	}
	if o.json {
		text, err := json.MarshalIndent(c, "", "  ")
		if err != nil {
			return fmt.Errorf("cannot print the table: %w", err)
		}
		fmt.Fprintf(out, "%s\n", text)
		return nil
	}
	fmt.Fprintf(out, "Errors of simulated times: median (nine of ten stay below)\n\n%s", c)
	return nil
}
