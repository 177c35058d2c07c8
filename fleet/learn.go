package fleet

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/route"
)

// Speeds are learned as ratios of sums, decayed by the endpoint's own events, and shared by all endpoints of a kind: an
// error that a whole kind shares costs almost nothing, while endpoints whose estimates drift apart with the luck of the
// mix lose their affinity (mean time to first token .66 s shared, 4.6 s apart, in the experiments this rule comes
// from).
const (
	speedDecay = .99
	// The prior stands for priorTokens tokens of prompt at priorPrefill seconds each, and priorOutput tokens of output
	// at priorDecode seconds each.
	priorPrefill, priorTokens = .0001, 2000
	priorDecode, priorOutput  = .02, 200
	// splitRatio is the gap between neighbours, in order of speed, that separates two kinds of endpoint where no label
	// does: wider than the luck of the mix, narrower than a GPU generation.
	splitRatio = 1.8
	// splitEvidence is how many tokens of prompt an endpoint must have computed before its speed counts in telling
	// kinds apart.
	splitEvidence = 4000
	// regroupEvery is how many first tokens (or readings with computed prompt) of an unlabelled endpoint pass between
	// two looks at the kinds.
	regroupEvery = 16
)

// speed is one endpoint's evidence: seconds and tokens, of computed prompt and of output.
type speed struct {
	prefillSeconds, prefillTokens float64
	decodeSeconds, decodeTokens   float64
	// firsts counts the first tokens it comes from, reads the readings.
	firsts, reads int
}

// kind is a group of endpoints that share their rates.
type kind struct {
	name  string
	total speed
}

func (k *kind) rate() route.Rate {
	return route.Rate{Name: k.name,
		Prefill: float32(1000 * (k.total.prefillSeconds + priorPrefill*priorTokens) / (k.total.prefillTokens + priorTokens)),
		Decode:  float32(1000 * (k.total.decodeSeconds + priorDecode*priorOutput) / (k.total.decodeTokens + priorOutput))}
}

func (k *kind) add(s *speed, sign float64) {
	k.total.prefillSeconds += sign * s.prefillSeconds
	k.total.prefillTokens += sign * s.prefillTokens
	k.total.decodeSeconds += sign * s.decodeSeconds
	k.total.decodeTokens += sign * s.decodeTokens
}

// teach changes an endpoint's evidence and with it its kind's rates.
func (p *Pool) teach(ep *endpoint, change func(s *speed)) {
	if ep.row < 0 {
		return
	}
	k := &p.kinds[ep.kind]
	k.add(&ep.speed, -1)
	change(&ep.speed)
	k.add(&ep.speed, 1)
	p.view.Rates[ep.kind] = k.rate()
}

// learnPrefill learns from one first token: so many seconds for so many computed prompt tokens.
func (p *Pool) learnPrefill(ep *endpoint, seconds, tokens float64) {
	if !(seconds > 0) || !(tokens > 0) {
		return
	}
	p.teach(ep, func(s *speed) {
		s.prefillSeconds = s.prefillSeconds*speedDecay + seconds
		s.prefillTokens = s.prefillTokens*speedDecay + tokens
		s.firsts++
	})
	p.regroupAfter(ep, ep.speed.firsts)
}

// regroupAfter looks at the kinds again when so many pieces of evidence are a reason to.
func (p *Pool) regroupAfter(ep *endpoint, pieces int) {
	if ep.row >= 0 && ep.GPU() == "" && pieces%regroupEvery == 0 {
		p.regroup()
	}
}

// learnDecode learns from one finished stream: so many seconds for so many tokens after the first.
func (p *Pool) learnDecode(ep *endpoint, seconds, tokens float64) {
	if !(seconds > 0) {
		return
	}
	p.teach(ep, func(s *speed) {
		s.decodeSeconds = s.decodeSeconds*speedDecay + seconds
		s.decodeTokens = s.decodeTokens*speedDecay + tokens
	})
}

// learnFromEngine learns from the engine's own counters where no stream shows us first tokens: whole answers, or
// someone else's traffic.
func (p *Pool) learnFromEngine(ep *endpoint, now *Reading) {
	old := &ep.reading
	seconds, tokens := now.PrefillSeconds-old.PrefillSeconds, now.PrefillTokens-old.PrefillTokens
	outSeconds, outTokens := now.DecodeSeconds-old.DecodeSeconds, now.DecodeTokens-old.DecodeTokens
	if ep.speed.firsts > 0 || ep.readAt == route.Never {
		return
	}
	p.teach(ep, func(s *speed) {
		if seconds > 0 && tokens > 0 {
			s.prefillSeconds, s.prefillTokens = s.prefillSeconds*speedDecay+seconds, s.prefillTokens*speedDecay+tokens
			s.reads++
		}
		if outSeconds > 0 && outTokens > 0 {
			s.decodeSeconds, s.decodeTokens = s.decodeSeconds*speedDecay+outSeconds, s.decodeTokens*speedDecay+outTokens
		}
	})
	if seconds > 0 && tokens > 0 {
		p.regroupAfter(ep, ep.speed.reads)
	}
}

// regroup tells the kinds apart: by engine and GPU label where there is a label, else by measured speed, a new kind
// beginning where the next endpoint in order of speed is more than splitRatio slower. Endpoints with too little
// evidence of their own form a kind with the rates of all of them together; where they are all there is, nothing has
// told them apart, and may never: short prompts are little evidence, however many.
func (p *Pool) regroup() {
	p.kinds = p.kinds[:0]
	at := make(map[string]int32)
	place := func(name string, ep *endpoint) {
		k, ok := at[name]
		if !ok {
			k = int32(len(p.kinds))
			at[name] = k
			p.kinds = append(p.kinds, kind{name: name})
		}
		ep.kind = k
		p.kinds[k].add(&ep.speed, 1)
	}
	var measured, unknown []*endpoint
	for _, ep := range p.rows {
		switch {
		case ep.GPU() != "":
			place(strings.TrimSpace(ep.engine+" "+ep.GPU()), ep)
		case ep.speed.prefillTokens >= splitEvidence:
			measured = append(measured, ep)
		default:
			unknown = append(unknown, ep)
		}
	}
	slices.SortFunc(measured, func(a, b *endpoint) int {
		return cmp.Or(cmp.Compare(a.msPerToken(), b.msPerToken()), cmp.Compare(a.Name, b.Name))
	})
	group := 1
	for i, ep := range measured {
		if i > 0 && ep.msPerToken() > splitRatio*measured[i-1].msPerToken() {
			group++
		}
		place(strings.TrimSpace(ep.engine+" speed "+strconv.Itoa(group)), ep)
	}
	name := "too little seen yet"
	switch {
	case len(p.kinds) == 0:
		name = "all alike so far"
	case len(p.kinds) == 1 && len(measured) > 0:
		name = p.kinds[0].name
	}
	p.placeUnknown(unknown, name, place)
	p.view.Rates = make([]route.Rate, max(len(p.kinds), 1))
	for k := range p.kinds {
		p.view.Rates[k] = p.kinds[k].rate()
	}
	p.dirty = true
}

// placeUnknown puts endpoints without evidence under name: with the one kind that was measured, or in a kind of their
// own that starts from the measured endpoints' mean.
func (p *Pool) placeUnknown(unknown []*endpoint, name string, place func(string, *endpoint)) {
	if len(unknown) == 0 {
		return
	}
	var all kind
	seconds, n := 0., 0.
	for k := range p.kinds {
		all.add(&p.kinds[k].total, 1)
	}
	for _, ep := range p.rows {
		if ep.speed.prefillTokens >= splitEvidence {
			seconds += ep.speed.prefillSeconds / ep.speed.prefillTokens
			n++
		}
	}
	if n > 0 { // each endpoint counts the same: by tokens, the fast ones would speak for the slow ones, which would then drown
		all.total.prefillSeconds = all.total.prefillTokens * seconds / n
	}
	for _, ep := range unknown {
		place(name, ep)
	}
	if len(p.kinds) > 1 {
		p.kinds[unknown[0].kind].add(&all.total, 1)
	}
}

func (ep *endpoint) msPerToken() float64 {
	return 1000 * ep.speed.prefillSeconds / ep.speed.prefillTokens
}

// means are what is learned of a pool's requests: exponential means, and the bytes-per-token ratio as a ratio of sums.
type means struct {
	uncachedTokens, outputTokens float64
	bytes, tokens                float64
}

const meanDecay = .98

// newMeans starts from a chat of common size: 500 tokens in, 200 out, 4 bytes a token with the weight of a few
// requests.
func newMeans() means {
	return means{uncachedTokens: 500, outputTokens: 200, bytes: 8000, tokens: 2000}
}

func (m *means) uncached() float64      { return m.uncachedTokens }
func (m *means) output() float64        { return m.outputTokens }
func (m *means) bytesPerToken() float64 { return m.bytes / m.tokens }

func (m *means) sent(uncached float64) {
	m.uncachedTokens = meanDecay*m.uncachedTokens + (1-meanDecay)*uncached
}

func (m *means) finished(promptBytes int, o Outcome) {
	if o.OutputTokens > 0 {
		m.outputTokens = meanDecay*m.outputTokens + (1-meanDecay)*float64(o.OutputTokens)
	}
	if o.PromptTokens > 0 && promptBytes > 0 {
		m.bytes = meanDecay*m.bytes + float64(promptBytes)
		m.tokens = meanDecay*m.tokens + float64(o.PromptTokens)
	}
}
