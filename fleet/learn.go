package fleet

import (
	"cmp"
	"math"
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
	// The prior stands for priorPrompts prompts of priorPrompt tokens and priorOutput tokens of output, computed as
	// fast as the shape says.
	priorPrompts, priorPrompt = 2, 1000
	priorOutput               = 200
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

// speed is one endpoint's evidence: the seconds that prompts and outputs took, those that the kind's shape says at a
// factor of 1, and the tokens of prompt.
type speed struct {
	prefillSeconds, prefillExpected, prefillTokens float64
	decodeSeconds, decodeExpected                  float64
	// firsts counts the first tokens it comes from, reads the readings.
	firsts, reads int
	// streams counts the finished streams.
	streams int
}

// kind is a group of endpoints that share the shape of their steps and the factors on it.
type kind struct {
	name, source string
	step         route.Step
	total        speed
}

func (k *kind) rate() route.Rate {
	prompt, output := priorPrompts*alone(&k.step, priorPrompt), priorOutput*float64(k.step.Token(1, priorPrompt))/1000
	return route.Rate{Name: k.name, Source: k.source, Step: k.step,
		Prefill: float32((k.total.prefillSeconds + prompt) / (k.total.prefillExpected + prompt)),
		Decode:  float32((k.total.decodeSeconds + output) / (k.total.decodeExpected + output))}
}

// alone is how many seconds a prompt of so many tokens takes that is computed alone.
func alone(s *route.Step, tokens float32) float64 {
	work := s.Compute(tokens, 0)
	return float64(work+s.Launch(work, 0, 0)) / 1000
}

func (k *kind) add(s *speed, sign float64) {
	k.total.prefillSeconds += sign * s.prefillSeconds
	k.total.prefillExpected += sign * s.prefillExpected
	k.total.prefillTokens += sign * s.prefillTokens
	k.total.decodeSeconds += sign * s.decodeSeconds
	k.total.decodeExpected += sign * s.decodeExpected
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

// learnFirst learns from a first token. What was queued before it is not its own: time counts from the first token
// before it there, or from when it was sent and the step then under way had ended. Prompts of one step show their first
// tokens together, so that only the first of those pays for the step.
func (p *Pool) learnFirst(l *Lease) {
	ep := l.ep
	if ep.row < 0 {
		return
	}
	seconds, work := l.firstAt-l.sent, float64(l.work)
	if ep.lastFirst > l.sent {
		seconds = l.firstAt - ep.lastFirst
	} else {
		seconds = max(seconds-float64(l.rest), seconds/10)
	}
	if seconds > sameStep.Seconds() {
		work += float64(ep.shape.Launch(l.work, p.view.InFlight[ep.row]-1, p.view.Context[ep.row]-l.context()))
	}
	p.learnPrefill(ep, seconds, work/1000, float64(l.uncached), 1)
}

// learnPrefill learns from so many first tokens, in whose seconds so many prompt tokens were computed, for which the kind's shape
// says so many.
func (p *Pool) learnPrefill(ep *endpoint, seconds, expected, tokens float64, firsts int) {
	if !(seconds >= 0) || !(tokens > 0) || tokens > heaviestPrefill && seconds < tokens*minPrefillToken {
		return
	}
	weight := min(1, heaviestPrefill/tokens)
	p.teach(ep, func(s *speed) {
		s.prefillSeconds = s.prefillSeconds*speedDecay + weight*seconds
		s.prefillExpected = s.prefillExpected*speedDecay + weight*expected
		s.prefillTokens = s.prefillTokens*speedDecay + tokens
		s.firsts += firsts
	})
	p.regroupAfter(ep, ep.speed.firsts, firsts)
}

// regroupAfter looks at the kinds again when so many pieces of evidence, the last of them new, are a reason to.
func (p *Pool) regroupAfter(ep *endpoint, pieces, last int) {
	if ep.row >= 0 && ep.GPU() == "" && pieces/regroupEvery != (pieces-last)/regroupEvery {
		p.regroup()
	}
}

// learnDecode learns from one finished stream: so many seconds for so many tokens after the first, beside what else
// decodes there.
func (p *Pool) learnDecode(ep *endpoint, seconds, tokens float64, context float32) {
	if !(seconds >= tokens*minDecodeToken) || ep.row < 0 {
		return
	}
	weight := min(1, heaviestDecode/tokens)
	v := &p.view
	step := float64(ep.shape.Token(v.InFlight[ep.row]+1, v.Context[ep.row]+context)) / 1000
	p.teach(ep, func(s *speed) {
		s.decodeSeconds = s.decodeSeconds*speedDecay + weight*seconds
		s.decodeExpected = s.decodeExpected*speedDecay + weight*tokens*step
		s.streams++
	})
}

// learnFromEngine learns from the engine's own counters where no stream shows us tokens: answers that are whole, or not
// seen, or someone else's. Where there are streams they teach better.
func (p *Pool) learnFromEngine(ep *endpoint, now *Reading) {
	if ep.readAt == route.Never {
		return
	}
	if counts := now.Firsts >= 0 && len(ep.leases) > 0; ep.speed.firsts == 0 && !counts { // their departures teach better
		p.learnEnginePrefill(ep, now)
	}
	if ep.speed.streams == 0 || ep.ended.n > 0 {
		p.learnEngineDecode(ep, now)
	}
}

// learnEnginePrefill learns from the time that an engine says it took for prompts. It counts the time of a step once for
// each prompt in it, so that by this a full engine looks like a slow one.
func (p *Pool) learnEnginePrefill(ep *endpoint, now *Reading) {
	seconds, tokens := now.PrefillSeconds-ep.reading.PrefillSeconds, now.PrefillTokens-ep.reading.PrefillTokens
	if !(seconds > 0 && tokens > 0) {
		return
	}
	prompt := p.means.uncached()
	p.teach(ep, func(s *speed) {
		s.prefillSeconds, s.prefillTokens = s.prefillSeconds*speedDecay+seconds, s.prefillTokens*speedDecay+tokens
		s.prefillExpected = s.prefillExpected*speedDecay + tokens/prompt*alone(&ep.shape, float32(prompt))
		s.reads++
	})
	p.regroupAfter(ep, ep.speed.reads, 1)
}

// learnEngineDecode learns from the time that an engine says it took from token to token.
func (p *Pool) learnEngineDecode(ep *endpoint, now *Reading) {
	seconds, tokens := now.DecodeSeconds-ep.reading.DecodeSeconds, now.DecodeTokens-ep.reading.DecodeTokens
	if !(seconds > 0 && tokens > 0) {
		return
	}
	step := p.usualStep(ep, now)
	p.teach(ep, func(s *speed) {
		s.decodeSeconds = s.decodeSeconds*speedDecay + seconds
		s.decodeExpected = s.decodeExpected*speedDecay + tokens*step
	})
}

// usualStep is how many seconds a step without prompts took between two readings, by the shape.
func (p *Pool) usualStep(ep *endpoint, now *Reading) float64 {
	batch, context := float32(1), float32(priorPrompt)
	if mean := float32((ep.reading.Running + now.Running) / 2); mean > batch { // false for NaN
		batch, context = mean, priorPrompt*mean
	}
	if ep.row >= 0 && len(ep.leases) > 0 {
		context = p.view.Context[ep.row]
	}
	return float64(ep.shape.Token(batch, context)) / 1000
}

// regroup tells the kinds apart: by engine and GPU label where there is a label, else by measured speed, a new kind
// beginning where the next endpoint in order of speed is more than splitRatio slower. Endpoints with too little
// evidence of their own form a kind with the rates of all of them together; where they are all there is, nothing has
// told them apart, and may never: short prompts are little evidence, however many.
func (p *Pool) regroup() {
	p.kinds = p.kinds[:0]
	at := make(map[[2]string]int32)
	place := func(name, source string, ep *endpoint) {
		key := [2]string{name, source}
		k, ok := at[key]
		if !ok {
			k = int32(len(p.kinds))
			at[key] = k
			p.kinds = append(p.kinds, kind{name: name, source: source, step: ep.shape})
		}
		ep.kind = k
		p.kinds[k].add(&ep.speed, 1)
	}
	var measured, unknown []*endpoint
	for _, ep := range p.rows {
		switch {
		case ep.GPU() != "":
			place(ep.label, ep.source, ep)
		case ep.speed.prefillTokens >= splitEvidence:
			measured = append(measured, ep)
		default:
			unknown = append(unknown, ep)
		}
	}
	slices.SortFunc(measured, func(a, b *endpoint) int {
		return cmp.Or(cmp.Compare(a.factor(), b.factor()), cmp.Compare(a.Name, b.Name))
	})
	group := 1
	for i, ep := range measured {
		if i > 0 && ep.factor() > splitRatio*measured[i-1].factor() {
			group++
		}
		place(strings.TrimSpace(ep.engine+" speed "+strconv.Itoa(group)), "", ep)
	}
	name := "too little seen yet"
	switch {
	case len(p.kinds) == 0:
		name = "all alike so far"
	case len(p.kinds) == 1 && len(measured) > 0:
		name = p.kinds[0].name
	}
	p.placeUnknown(unknown, func(ep *endpoint) { place(name, "", ep) })
	p.view.Rates = make([]route.Rate, max(len(p.kinds), 1))
	p.view.Rates[0] = (&kind{step: neutral()}).rate()
	for k := range p.kinds {
		p.view.Rates[k] = p.kinds[k].rate()
	}
	p.dirty = true
}

// identify gives the endpoint the shape of its steps: the table's where model and GPU are known, else a neutral one.
// What was learned of another shape is forgotten. Call it when anything has changed that tells what the endpoint is.
func (p *Pool) identify(ep *endpoint) {
	shape, tp := neutral(), ep.tp()
	ep.label, ep.source, ep.pooled = "", "", p.config().Model
	if gpu := ep.GPU(); gpu != "" {
		models := append([]string{p.config().Model}, ep.roots...)
		if c := calibrate(p.table, models, gpu, tp, ep.reading.KVTokens); c != nil {
			shape, ep.source, tp = c.step(), c.Name, c.TP
		}
		ep.label = strings.TrimSpace(ep.engine + " " + gpu)
		if tp > 1 {
			ep.label += " ×" + strconv.Itoa(tp)
		}
	}
	if shape != ep.shape {
		ep.shape, ep.speed, ep.countedAt = shape, speed{}, math.NaN() // its requests are counted afresh
	}
}

// placeUnknown puts endpoints without evidence in a place: with the one kind that was measured, or in a kind of their
// own that starts from the measured endpoints' mean.
func (p *Pool) placeUnknown(unknown []*endpoint, place func(*endpoint)) {
	if len(unknown) == 0 {
		return
	}
	var all kind
	prompts, n, outputs, expected, m := 0., 0., 0., 0., 0.
	for k := range p.kinds {
		all.add(&p.kinds[k].total, 1)
	}
	own := unknown[0].shape
	for _, ep := range p.rows { // in the unit of the neutral shape
		if ep.speed.prefillTokens < splitEvidence {
			continue
		}
		prompts += ep.factor() * alone(&ep.shape, priorPrompt) / alone(&own, priorPrompt)
		n++
		if ep.speed.decodeExpected > 0 {
			unit := float64(ep.shape.Token(1, priorPrompt) / own.Token(1, priorPrompt))
			outputs += ep.speed.decodeSeconds / ep.speed.decodeExpected * unit
			expected += ep.speed.decodeExpected / unit
			m++
		}
	}
	// Each endpoint counts the same: by tokens, the fast ones would speak for the slow ones, which would then drown.
	if n > 0 {
		all.total.prefillSeconds = all.total.prefillExpected * prompts / n
	}
	if m > 0 {
		all.total.decodeExpected, all.total.decodeSeconds = expected, expected*outputs/m
	}
	for _, ep := range unknown {
		place(ep)
	}
	if len(p.kinds) > 1 {
		p.kinds[unknown[0].kind].add(&all.total, 1)
	}
}

// factor is how many times longer prompts take there than the shape says, at least a hundredth: below that it is no
// speed, and endpoints of none would be told apart by nothing.
func (ep *endpoint) factor() float64 {
	return max(ep.speed.prefillSeconds/ep.speed.prefillExpected, .01)
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
	m.uncachedTokens = meanDecay*m.uncachedTokens + (1-meanDecay)*min(uncached, meanTokens)
}

func (m *means) finished(promptBytes int, o Outcome) {
	if o.OutputTokens > 0 {
		m.outputTokens = meanDecay*m.outputTokens + (1-meanDecay)*float64(min(o.OutputTokens, meanOutput))
	}
	if o.PromptTokens > 0 && promptBytes > 0 {
		weight := min(1, heaviestBytes/float64(promptBytes))
		m.bytes = meanDecay*m.bytes + weight*float64(promptBytes)
		m.tokens = meanDecay*m.tokens + weight*float64(o.PromptTokens)
	}
}
