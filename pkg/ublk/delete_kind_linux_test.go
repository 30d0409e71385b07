package ublk

import (
	"testing"
	"time"
)

func TestClassifyDelete(t *testing.T) {
	ms := func(pairs ...float64) (list []deleteSample) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, deleteSample{
				rest:    time.Duration(pairs[i] * float64(time.Millisecond)),
				blocked: time.Duration(pairs[i+1] * float64(time.Millisecond)),
			})
		}
		return list
	}
	for name, c := range map[string]struct {
		samples []deleteSample
		want    DeleteKind
	}{
		"a machine too slow to tell claims nothing": {
			[]deleteSample{{7e6, 2e6, 0, 5e6}, {7e6, 2e6, 0, 5e6}, {7e6, 2e6, 0, 5e6}, {7e6, 2e6, 0, 5e6}}, DeleteLocked,
		},
		"nothing measured":       {nil, DeleteLocked},
		"deletions over at once": {ms(.1, .1, .2, .1, .1, .3, .05, .1, .1, .1), DeleteNoWait},
		"deletions of which only the end was seen": {
			[]deleteSample{{1e5, 1e5, 9e6, 1e5}, {1e5, 1e5, 9e6, 1e5}, {2e5, 1e5, 8e6, 1e5}, {1e5, 1e5, 1e5, 1e5}, {-1e5, 1e5, 9e6, 1e5}}, DeleteLocked,
		},
		"deletions over before they were looked at": {
			[]deleteSample{{-1e5, 1e5, 2e5, 1e5}, {-2e5, 1e5, 3e5, 1e5}, {1e5, 1e5, 2e5, 1e5}, {1e5, 1e5, 9e6, 1e5}}, DeleteNoWait,
		},
		"the other command waits each time":          {ms(7, 6.9, 8, 8.1, 7, 7, 6, 5.8, 9, 9.3), DeleteLocked},
		"the other command never waits":              {ms(7, .7, 8, .9, 7, 1, 6, .5, 9, .8), DeleteUnlocked},
		"two of five late by load":                   {ms(7, 9, 8, .9, 7, 12, 6, .5, 9, .8), DeleteUnlocked},
		"one of five early by load proves nothing":   {ms(7, 7, 8, .9, 7, 7, 6, 6, 9, 9), DeleteLocked},
		"late looks at a deletion do not count":      {ms(.8, 4, .7, .9, .8, 3, 7, .5, 9, .8, 8, .7, 10, .6, 9, .9), DeleteUnlocked},
		"two usable samples are too few for a claim": {ms(7, .7, 8, .9), DeleteLocked},
	} {
		if got := classifyDelete(c.samples); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
