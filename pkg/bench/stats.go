package bench

import (
	"math"
	"slices"
)

// summary is what a series comes to.
type summary struct {
	n           int
	median      float64
	least, most float64
	p99         float64
}

// summary pools the samples of single operations. Of waves each round counts
// once, with its median, so that the spread shown is that between rounds.
func (s *Series) summary() summary {
	var list []float64
	for _, round := range s.Rounds {
		switch {
		case len(round) == 0:
		case s.Each:
			list = append(list, round...)
		default:
			list = append(list, quantile(slices.Sorted(slices.Values(round)), .5))
		}
	}
	if len(list) == 0 {
		return summary{median: math.NaN(), least: math.NaN(), most: math.NaN(), p99: math.NaN()}
	}
	slices.Sort(list)
	return summary{n: len(list), median: quantile(list, .5), least: list[0], most: list[len(list)-1], p99: quantile(list, .99)}
}

// quantile of a sorted list, between neighbours by weight, as the median of an
// even number of samples is.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
