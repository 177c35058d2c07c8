package sim

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// Interval is a mean with the bounds of its 95 % confidence interval. Seeds are independent repetitions, so it is
// Student's t over one value a seed. Of a single seed the bounds are NaN.
type Interval struct {
	Mean, Low, High float64
}

// String prints seconds with three digits that matter, and half the width of the interval.
func (i Interval) String() string {
	if math.IsNaN(i.Low) {
		return figure(i.Mean)
	}
	return figure(i.Mean) + " ±" + figure((i.High-i.Low)/2)
}

// Change prints a ratio as a difference in percent, with its interval.
func (i Interval) Change() string {
	switch {
	case math.IsNaN(i.Mean):
		return "unknown"
	case math.IsNaN(i.Low):
		return percent(i.Mean)
	}
	return fmt.Sprintf("%s (%s…%s)", percent(i.Mean), strings.TrimSuffix(percent(i.Low), "%"), strings.TrimSuffix(percent(i.High), "%"))
}

// MarshalJSON writes what is no number as null.
func (i Interval) MarshalJSON() ([]byte, error) {
	number := func(x float64) *float64 {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		return &x
	}
	return json.Marshal(struct {
		Mean *float64 `json:"mean"`
		Low  *float64 `json:"low"`
		High *float64 `json:"high"`
	}{number(i.Mean), number(i.Low), number(i.High)})
}

// Mean is the mean of values, one of each independent repetition, and how sure it is.
func Mean(values []float64) Interval {
	n, sum, squares := float64(len(values)), 0., 0.
	for _, x := range values {
		sum += x
	}
	mean := sum / n
	for _, x := range values {
		squares += (x - mean) * (x - mean)
	}
	if n < 2 {
		return Interval{mean, math.NaN(), math.NaN()}
	}
	half := student(len(values)-1) * math.Sqrt(squares/(n-1)/n)
	return Interval{mean, mean - half, mean + half}
}

// Ratio compares pairs of positive values: the geometric mean of a/b, from the differences of logarithms, so that a/b
// and b/a say the same and the rare long tail of one seed does not hide the others.
func Ratio(a, b []float64) Interval {
	logs := make([]float64, len(a))
	for i := range a {
		logs[i] = math.Log(a[i] / b[i])
	}
	l := Mean(logs)
	return Interval{math.Exp(l.Mean), math.Exp(l.Low), math.Exp(l.High)}
}

// student is the 97.5 % quantile of Student's t with so many degrees of freedom, at least 1, good to a thousandth.
func student(freedom int) float64 {
	table := [...]float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}
	if freedom <= len(table) {
		return table[freedom-1]
	}
	// The expansion by Cornish and Fisher around the normal quantile 1.95996.
	n := float64(freedom)
	return 1.95996 + 2.37227/n + 2.8225/(n*n)
}
