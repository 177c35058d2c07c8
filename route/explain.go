package route

// Explanation is a Decision with every column that led to it, made by running Decide again and keeping them.
type Explanation struct {
	Decision Decision
	Profile  string
	// Cost and Unit are the profile's; TieRatio and TieSlack are its band for this view.
	Cost               bool
	Unit               string
	TieRatio, TieSlack float32
	// Filters has a row per filter of the profile: which endpoints it dropped, and whether it was lifted.
	Filters []FilterColumn
	// Terms has a row per term of the profile.
	Terms []TermColumn
	// Kept tells the endpoints that no filter dropped; Totals is finite for those and means nothing for others.
	Kept   []bool
	Totals Column
	// Aged is how many kept endpoints' readings were too old to be used.
	Aged int
}

// FilterColumn is what one filter did.
type FilterColumn struct {
	Name string
	Says string
	// Dropped marks the rows that this filter cleared, or would have cleared where Lifted.
	Dropped []bool
	// Lifted says that the filter would have left no endpoint and was therefore not applied.
	Lifted bool
}

// TermColumn is what one term said.
type TermColumn struct {
	Name   string
	Weight float32
	// Rare is Term.Rare.
	Rare bool
	// Values are the scorer's, unknown ones already replaced; those of endpoints that are not kept mean nothing.
	Values Column
	// Unknown marks the kept rows whose value was not known; Known counts the kept rows whose value was.
	Unknown []bool
	Known   int
}

// Explain decides v again and keeps the reasons. It takes the same path as Decide and therefore gives the same
// Decision.
func (p *Profile) Explain(v *View) Explanation {
	p = p.of(v)
	e := &Explanation{Profile: p.Name, Cost: p.Cost, Unit: p.Unit}
	e.TieRatio, e.TieSlack = p.band(v)
	for _, f := range p.Filters {
		e.Filters = append(e.Filters, FilterColumn{Name: f.Name, Says: f.Says, Dropped: make([]bool, v.Snapshot.Len())})
	}
	for _, t := range p.Terms {
		e.Terms = append(e.Terms, TermColumn{Name: t.Name, Weight: t.Weight, Rare: t.Rare})
	}
	e.Decision = p.run(v, e)
	e.Kept = append([]bool(nil), v.keep...)
	e.Totals, e.Aged = append(Column(nil), v.total...), v.aged
	return *e
}

// filter keeps what filter f did; on a nil trace it does nothing, so that Decide pays only a comparison.
func (e *Explanation) filter(f int, v *View, lifted bool) {
	if e == nil {
		return
	}
	c := &e.Filters[f]
	c.Lifted = lifted
	for i := range v.keep {
		c.Dropped[i] = v.before[i] && !v.keep[i]
	}
}

// term keeps what term t said, of which unknown values are still to be replaced.
func (e *Explanation) term(t int, v *View, unknown int) {
	if e == nil {
		return
	}
	c := &e.Terms[t]
	c.Values = append(Column(nil), v.score...)
	c.Unknown = make([]bool, len(v.score))
	for i, s := range v.score {
		c.Unknown[i] = v.keep[i] && !(s <= huge && s >= -huge)
		if v.keep[i] {
			c.Known++
		}
	}
	c.Known -= unknown
}

// values is where the values of term t are kept, nil when nothing is.
func (e *Explanation) values(t int) Column {
	if e == nil {
		return nil
	}
	return e.Terms[t].Values
}
