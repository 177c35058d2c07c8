package scrape

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/fleet"
)

// Found is what one endpoint turned out to be.
type Found struct {
	// Engine is the configured engine, else the one found by asking, empty if neither is known.
	Engine string
	// Spoken is the engine whose metrics the endpoint shows, empty if it shows none; other than Engine it is a mistake
	// in the configuration.
	Spoken string
	// MetricsPath is where metrics were found, empty if nowhere.
	MetricsPath string
	// Reading is all unknown where there are no metrics.
	Reading fleet.Reading
	// Missing says in words what routing could use and the endpoint does not say, and what else it refused.
	Missing []string
	// Models is what the endpoint lists.
	Models []fleet.Model
}

// Probe asks one endpoint once, as the scraper would on first contact. It reports an error if the endpoint can't be
// reached, or neither lists models nor shows metrics. It takes at most as long as ctx lets it, and 10 s.
func Probe(ctx context.Context, e fleet.Endpoint) (Found, error) {
	c := newClient(e, nil, askTimeout)
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, 2*askTimeout)
	defer cancel()
	f := Found{Engine: e.Engine, Reading: fleet.UnknownReading()}
	asked := c.ask(ctx, "")
	if asked.err != nil {
		_, why := c.classify(asked.err, 2*askTimeout)
		return f, fmt.Errorf("cannot probe endpoint %q: %s", e.Name, why)
	}
	f.Models = asked.models
	if f.Engine == "" {
		f.Engine = asked.engine
	}
	if err := f.readMetrics(ctx, c, asked.capacity); err != nil {
		return f, err
	}
	if asked.refused != "" {
		f.Missing = append(f.Missing, asked.refused)
	}
	if f.MetricsPath == "" && len(f.Models) == 0 {
		return f, fmt.Errorf("cannot probe endpoint %q: it neither lists models at %s nor shows metrics of a known engine; %s", e.Name, modelsPath,
			strings.Join(f.Missing, "; "))
	}
	return f, nil
}

// readMetrics fills in what the metrics page says; that there is none is no error.
func (f *Found) readMetrics(ctx context.Context, c *client, capacity float64) error {
	address, _ := c.metricsAddress()
	var whys []string
	refused := false
	for _, path := range c.metricsPaths() {
		r, err := c.request(address, path, "text/plain")
		if err != nil {
			return err
		}
		why := ""
		a, err := c.get(ctx, r, maxPage, nil)
		switch {
		case err != nil:
			_, why = c.classify(err, 2*askTimeout)
		case a.status != http.StatusOK:
			why, refused = fmt.Sprintf("it answers with status %d", a.status), refused || a.status == http.StatusBadRequest
		case detect(a.body) == nil:
			why = looksLike(a.body) + ", not a metrics page of a known engine"
		default:
			f.take(path, a.body, capacity)
			return nil
		}
		whys = append(whys, "no metrics at "+address+path+": "+why)
	}
	if refused && c.endpoint.TLS == nil {
		whys = append(whys, plainToTLS)
	}
	f.Missing = whys
	return nil
}

func (f *Found) take(path string, page []byte, capacity float64) {
	d := detect(page)
	f.MetricsPath, f.Spoken = path, d.engine
	if f.Engine == "" {
		f.Engine = d.engine
	}
	if configured := dialectOf(f.Engine); configured != nil {
		d = configured
	}
	s := newScanner(d)
	s.scan(page)
	var missing lack
	f.Reading, missing = s.reading(capacity)
	f.Missing = slices.Clone(missing.words)
}
