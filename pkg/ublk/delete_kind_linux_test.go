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
			[]deleteSample{{rest: 7e6, blocked: 2e6, unseen: 0, alone: 5e6}, {rest: 7e6, blocked: 2e6, unseen: 0, alone: 5e6}, {rest: 7e6, blocked: 2e6, unseen: 0, alone: 5e6}, {rest: 7e6, blocked: 2e6, unseen: 0, alone: 5e6}}, DeleteLocked,
		},
		"nothing measured":       {nil, DeleteLocked},
		"deletions over at once": {ms(.1, .1, .2, .1, .1, .3, .05, .1, .1, .1), DeleteNoWait},
		"deletions of which only the end was seen": {
			[]deleteSample{{rest: 1e5, blocked: 1e5, unseen: 9e6, alone: 1e5}, {rest: 1e5, blocked: 1e5, unseen: 9e6, alone: 1e5}, {rest: 2e5, blocked: 1e5, unseen: 8e6, alone: 1e5}, {rest: 1e5, blocked: 1e5, unseen: 1e5, alone: 1e5}, {rest: -1e5, blocked: 1e5, unseen: 9e6, alone: 1e5}}, DeleteLocked,
		},
		"deletions over before they were looked at": {
			[]deleteSample{{rest: -1e5, blocked: 1e5, unseen: 2e5, alone: 1e5}, {rest: -2e5, blocked: 1e5, unseen: 3e5, alone: 1e5}, {rest: 1e5, blocked: 1e5, unseen: 2e5, alone: 1e5}, {rest: 1e5, blocked: 1e5, unseen: 9e6, alone: 1e5}}, DeleteNoWait,
		},
		"deletions that computed all the time they were not looked at": {
			[]deleteSample{{rest: -5e5, unseen: 3e6, busy: 25e5}, {rest: -5e5, unseen: 5e6, busy: 48e5}, {rest: -4e5, unseen: 2e6, busy: 1e6}, {rest: 15e5, unseen: 9e6, busy: 1e6}}, DeleteNoWait,
		},
		"others that computed while a deletion was not looked at": {
			[]deleteSample{{rest: -16e6, unseen: 20e6, busy: 1e6}, {rest: -8e6, unseen: 20e6, busy: 1e6}, {rest: -5e5, unseen: 3e6, busy: 25e5}}, DeleteLocked,
		},
		"a machine that makes some deletions slow that wait for nothing": {ms(.4, .2, .7, .3, .3, .2, 3, 2, .8, .5, 2, 1.9, .6, .4, 5, 3), DeleteNoWait},
		"a few deletions that can't have waited prove nothing":           {ms(7, 6.9, 8, 8.1, .7, .7, .6, .5, .5, .4, 9, 9.3, 8, 8), DeleteLocked},
		"the other command waits each time":                              {ms(7, 6.9, 8, 8.1, 7, 7, 6, 5.8, 9, 9.3), DeleteLocked},
		"the other command never waits":                                  {ms(7, .7, 8, .9, 7, 1, 6, .5, 9, .8), DeleteUnlocked},
		"two of five late by load":                                       {ms(7, 9, 8, .9, 7, 12, 6, .5, 9, .8), DeleteUnlocked},
		"one of five early by load proves nothing":                       {ms(7, 7, 8, .9, 7, 7, 6, 6, 9, 9), DeleteLocked},
		"late looks at a deletion do not count":                          {ms(.8, 4, .7, .9, .8, 3, 7, .5, 9, .8, 8, .7, 10, .6, 9, .9), DeleteUnlocked},
		"two usable samples are too few for a claim":                     {ms(7, .7, 8, .9), DeleteLocked},
	} {
		if got := classifyDelete(c.samples); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
