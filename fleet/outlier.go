package fleet

// An endpoint that deviates from its kind keeps its kind's rates, since rates of its own drift apart with the luck of the
// mix; it is reported.
const (
	// outlierEvidence is how many tokens of prompt an endpoint, and the others of its kind together, must have computed of late.
	outlierEvidence = 20_000
	// outlierRatio is how many times slower than those it must be.
	outlierRatio = 1.5
)

// outlier is how many times longer prompts take at the endpoint than at the others of its kind, 0 where that is not much or
// not known.
func (p *Pool) outlier(ep *endpoint) float64 {
	if ep.row < 0 {
		return 0
	}
	others := p.kinds[ep.kind]
	others.add(&ep.speed, -1)
	if ep.speed.prefillTokens < outlierEvidence || others.total.prefillTokens < outlierEvidence {
		return 0
	}
	ratio := ep.factor() * others.total.prefillExpected / others.total.prefillSeconds
	if !(ratio > outlierRatio) {
		return 0
	}
	return ratio
}
