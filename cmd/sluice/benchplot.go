package main

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/sluice-gateway/sluice/sim"
)

// plotHead begins a page that needs no other file: pictures are inline, nothing is loaded.
const plotHead = `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width"/>
<title>sluice bench</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem }
figure { flex: 1 1 30rem; margin: 0 }
figure svg { width: 100%; height: auto }
pre { overflow-x: auto; font-size: 12px; background: #f6f6f6; padding: .7rem }
.missed { color: #a00 }
.undecided { color: #850 }
</style>
</head>
<body>
<h1>sluice bench</h1>
`

func writePlot(path string, t *sim.Table) error {
	page, err := plotTable(t)
	if err != nil {
		return err
	}
	return os.WriteFile(path, page, 0o644)
}

// plotTable writes markup by hand: a template engine would keep the linker from leaving out what the gateway never
// calls, which is 8 MB.
func plotTable(t *sim.Table) ([]byte, error) {
	b := bytes.NewBufferString(plotHead)
	fmt.Fprintf(b, `<p>%s. Bars are means over seeds, whiskers their 95 %% intervals where there are several; curves are the means over seeds of each share's time.
Times are on logarithmic axes. A curve that ends below 1 is of a policy that left requests without an answer.</p>
`, html.EscapeString(benchTitle(t)))
	standing, err := plotStanding(t)
	if err != nil {
		return nil, fmt.Errorf("standing: %w", err)
	}
	if standing != nil {
		fmt.Fprintf(b, "<h2>Standing</h2>\n<figure>%s<figcaption>Above 1 the default profile is faster; beyond 150 nothing is drawn</figcaption></figure>\n", standing)
	}
	goals := t.Goals()
	for _, l := range t.Rows {
		curves, err := plotCurves(l.Cells)
		if err != nil {
			return nil, fmt.Errorf("curves of row %s: %w", l.ID, err)
		}
		bars, err := plotBars(l.Cells)
		if err != nil {
			return nil, fmt.Errorf("bars of row %s: %w", l.ID, err)
		}
		fmt.Fprintf(b, "<h2>%s</h2>\n", html.EscapeString(l.ID+": "+l.Name))
		if l.Verdict != "" {
			fmt.Fprintf(b, "<p>%s.</p>\n", html.EscapeString(l.Verdict))
		}
		for _, g := range goals {
			if g.Row == l.ID {
				fmt.Fprintf(b, "<p class=\"%s\">Goal %s: %s. %s</p>\n", g.Outcome, g.Outcome, html.EscapeString(g.Name), html.EscapeString(g.Details))
			}
		}
		fmt.Fprintf(b, "<div class=\"pictures\">\n<figure>%s<figcaption>Share of requests with a first token within a time</figcaption></figure>\n"+
			"<figure>%s<figcaption>Time to first token</figcaption></figure>\n</div>\n", curves, bars)
	}
	fmt.Fprintf(b, "<h2>All figures</h2>\n<pre>%s</pre>\n</body>\n</html>\n", html.EscapeString(t.Text([]sim.View{sim.ViewTTFT, sim.ViewTPOT, sim.ViewE2E, sim.ViewFleet})))
	return b.Bytes(), nil
}

// plotColor is the color of the policy in a place: those of Okabe and Ito, which people who see few colors can tell
// apart. What is beyond them has them again, with other dashes.
func plotColor(i int) color.Color {
	colors := [...]color.RGBA{{0x99, 0x99, 0x99, 255}, {0xe6, 0x9f, 0x00, 255}, {0x56, 0xb4, 0xe9, 255}, {0x00, 0x72, 0xb2, 255}, {0x00, 0x9e, 0x73, 255},
		{0xd5, 0x5e, 0x00, 255}, {0xcc, 0x79, 0xa7, 255}, {0, 0, 0, 255}}
	return colors[i%len(colors)]
}

func plotShape(i int) draw.GlyphDrawer {
	return [...]draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}}[i/8%3]
}

func plotDashes(i int) []vg.Length {
	return [...][]vg.Length{nil, {vg.Points(5), vg.Points(3)}, {vg.Points(1.5), vg.Points(1.5)}}[i/8%3]
}

// plotStanding draws, row by row, every policy's mean time to first token as a multiple of the default profile's: above 1 the default profile is faster.
func plotStanding(t *sim.Table) ([]byte, error) {
	p := sansPlot()
	p.Y.Label.Text = "mean time to first token over latency's"
	var ids []string
	places := make(map[string]int)
	shortest, longest := 1., 1.
	for i, l := range t.Rows {
		ids = append(ids, l.ID)
		for k, pair := range l.Pairs {
			r := pair.Ratios[sim.MeanTTFT]
			if !(r.Mean > 0) {
				continue
			}
			at, named := places[pair.To]
			if !named {
				at = len(places)
				places[pair.To] = at
			}
			bar := &whiskers{XYs: plotter.XYs{{X: float64(i) + .7*(float64(k)/float64(len(l.Pairs))-.5), Y: 1 / r.Mean}}, errors: make(plotter.YErrors, 1)}
			if r.Low > 0 && r.Low <= r.High {
				bar.errors[0].Low, bar.errors[0].High = 1/r.Mean-1/r.High, 1/r.Low-1/r.Mean
			}
			shortest, longest = min(shortest, 1/r.Mean), max(longest, 1/r.Mean)
			dot, err := plotter.NewScatter(bar.XYs)
			if err != nil {
				return nil, err
			}
			dot.Color, dot.Radius, dot.Shape = plotColor(at), vg.Points(2), plotShape(at)
			lines, err := plotter.NewYErrorBars(bar)
			if err != nil {
				return nil, err
			}
			lines.Color, lines.CapWidth = plotColor(at), vg.Points(2)
			p.Add(lines, dot)
			if !named {
				p.Legend.Add(pair.To, dot)
			}
		}
	}
	if len(ids) == 0 || len(places) == 0 {
		return nil, nil
	}
	p.NominalX(ids...)
	p.X.Min, p.X.Max = -.5, float64(len(ids))+float64(len(ids))*.25+.5 // room for the legend
	logAxis(&p.Y, shortest, min(longest, 100))
	p.Y.Max = min(p.Y.Max, 150)
	p.Legend.Top = true
	c := vgsvg.New(2*plotWidth, 1.2*plotHeight)
	p.Draw(draw.New(c))
	return svgOf(c)
}

// sansPlot is an empty plot whose letters have no serifs.
func sansPlot() *plot.Plot {
	p := plot.New()
	for _, f := range []*font.Font{&p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		f.Variant = "Sans"
	}
	return p
}

func plotCurves(cells []sim.Cell) ([]byte, error) {
	p := sansPlot()
	p.X.Label.Text, p.Y.Label.Text = "seconds", "share"
	shortest, longest := math.Inf(1), 0.
	for i, c := range cells {
		var points plotter.XYs
		for j, x := range c.Curve {
			if x > 0 && !math.IsInf(x, 1) {
				points = append(points, plotter.XY{X: x, Y: float64(j) / float64(len(c.Curve)-1)})
				shortest, longest = min(shortest, x), max(longest, x)
			}
		}
		if len(points) == 0 {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width, line.Dashes = plotColor(i), vg.Points(1.5), plotDashes(i)
		if c.Policy == sim.Greedy().Name { // leaves what lies under it to be seen
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(5)}
		}
		p.Add(line)
		p.Legend.Add(c.Policy, line)
	}
	logAxis(&p.X, shortest, longest)
	p.Y.Min, p.Y.Max = 0, 1
	return inlineSVG(p)
}

func plotBars(cells []sim.Cell) ([]byte, error) {
	p := sansPlot()
	p.Y.Label.Text = "seconds"
	p.Legend.Top, p.Legend.Left = true, true
	measures := []sim.Measure{sim.MeanTTFT, sim.P50, sim.P95, sim.P99}
	step := .8 / float64(len(cells))
	shortest, longest := math.Inf(1), 0.
	for i, c := range cells {
		values, bars := make(plotter.Values, len(measures)), &whiskers{XYs: make(plotter.XYs, len(measures)), errors: make(plotter.YErrors, len(measures))}
		at := (float64(i) - float64(len(cells)-1)/2) * step
		for j, m := range measures {
			f := c.Figures[m]
			if !(f.Mean > 0) || math.IsInf(f.Mean, 1) {
				continue
			}
			values[j], bars.XYs[j] = f.Mean, plotter.XY{X: float64(j) + at, Y: f.Mean}
			if f.Low <= f.High {
				bars.errors[j].Low, bars.errors[j].High = f.Mean-f.Low, f.High-f.Mean
			}
			shortest, longest = min(shortest, f.Mean), max(longest, f.Mean+bars.errors[j].High)
		}
		chart, err := plotter.NewBarChart(values, vg.Length(step)*plotWidth/5)
		if err != nil {
			return nil, err
		}
		chart.XMin, chart.Color, chart.LineStyle.Width = at, plotColor(i), 0
		lines, err := plotter.NewYErrorBars(bars)
		if err != nil {
			return nil, err
		}
		p.Add(chart, lines)
		p.Legend.Add(c.Policy, chart)
	}
	p.NominalX("mean", "P50", "P95", "P99")
	p.X.Min, p.X.Max = -.5, float64(len(measures))-.5
	logAxis(&p.Y, shortest, longest)
	p.Y.Max *= math.Pow(p.Y.Max/p.Y.Min, .35) // room for the legend
	return inlineSVG(p)
}

// whiskers are intervals around points.
type whiskers struct {
	plotter.XYs
	errors plotter.YErrors
}

func (w *whiskers) YError(i int) (low, high float64) { return w.errors[i].Low, w.errors[i].High }

// clampedLog is a logarithmic scale on which what is below its beginning, such as the foot of a bar, is at its
// beginning.
type clampedLog struct{}

func (clampedLog) Normalize(low, high, x float64) float64 {
	return math.Log(max(x, low)/low) / math.Log(high/low)
}

// logAxis makes an axis logarithmic, with room around the values.
func logAxis(a *plot.Axis, shortest, longest float64) {
	if !(shortest <= longest) { // there was nothing to draw
		shortest, longest = .01, 1
	}
	a.Min, a.Max = shortest/1.5, longest*1.5
	a.Scale = clampedLog{}
	a.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
		var ticks []plot.Tick
		steps := []float64{1, 2, 5}
		if high/low > 2000 { // more would overlap
			steps = steps[:1]
		}
		for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
			for _, n := range steps {
				if x := n * math.Pow(10, e); x >= low && x <= high {
					ticks = append(ticks, plot.Tick{Value: x, Label: fmt.Sprintf("%g", math.Round(x*1e6)/1e6)})
				}
			}
		}
		return ticks
	})
}

const plotWidth, plotHeight = 6 * vg.Inch, 4 * vg.Inch

// inlineSVG draws the plot as an element of a page.
func inlineSVG(p *plot.Plot) ([]byte, error) {
	c := vgsvg.New(plotWidth, plotHeight)
	p.Draw(draw.New(c))
	return svgOf(c)
}

// svgOf is what was drawn, as an element of a page.
func svgOf(c *vgsvg.Canvas) ([]byte, error) {
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return nil, err
	}
	text := b.Bytes()
	if i := bytes.Index(text, []byte("<svg")); i >= 0 { // a document's prologue has no place in a page
		text = text[i:]
	}
	return text, nil
}
