package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// reportFormat is the version of the JSON; others are refused.
const reportFormat = 1

// Report is what one or more runs under the same conditions have measured.
type Report struct {
	Format     int        `json:"format"`
	Conditions Conditions `json:"conditions"`
	// Kinds are how the kernel deletes devices, as each run's
	// ublk.ProbeDeleteKind found: a busy machine can spoil one of them.
	Kinds  []string  `json:"kinds"`
	Series []*Series `json:"series"`
}

// Conditions are what figures mean nothing without. Runs that differ in any of
// them do not merge.
type Conditions struct {
	// Label names what is measured, for the columns; runs with one label merge.
	Label string `json:"label"`
	// Kernel is the release.
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	// Machine is what the kernel runs on, as far as it is known.
	Machine string `json:"machine"`
	Version string `json:"version"`
	// Devices is N of the table kernel, Volumes that of lifecycle and growth; 0
	// where they were not measured.
	Devices int `json:"devices"`
	Volumes int `json:"volumes"`
	// Exact says that the end of a deletion was seen when its number was free;
	// otherwise when the device was no longer listed, which is earlier.
	Exact bool `json:"exact"`
}

// Key tells series apart.
type Key struct {
	Table string `json:"table"`
	// Part is what was measured, such as "DEL", with its unit.
	Part string `json:"part"`
	Unit string `json:"unit"`
	// Way is who did it: the columns that are compared.
	Way string `json:"way"`
	// Load is how many did so at a time, or how many others there were.
	Load int `json:"load"`
	// Each says that samples are of single operations, whose distribution counts;
	// otherwise they are of a whole wave each.
	Each bool `json:"each,omitempty"`
}

// Series are the samples of one key, a list a round.
type Series struct {
	Key
	Rounds [][]float64 `json:"rounds"`
}

// kind is UNLOCKED if one probe said so: load can hide that and never make it up
// (ublk.Control.ProbeDeleteKind). Otherwise it is what most said, or said first.
func (r *Report) kind() string {
	if u := ublk.DeleteUnlocked.String(); slices.Contains(r.Kinds, u) {
		return u
	}
	best, most := "", 0
	for _, k := range r.Kinds {
		n := 0
		for _, other := range r.Kinds {
			if other == k {
				n++
			}
		}
		if n > most {
			best, most = k, n
		}
	}
	return best
}

// add appends one round's samples.
func (r *Report) add(k Key, samples ...float64) {
	s := r.find(k)
	if s == nil {
		s = &Series{Key: k}
		r.Series = append(r.Series, s)
	}
	s.Rounds = append(s.Rounds, samples)
}

func (r *Report) find(k Key) *Series {
	i := slices.IndexFunc(r.Series, func(s *Series) bool { return s.Key == k })
	if i < 0 {
		return nil
	}
	return r.Series[i]
}

// median is the median of a series whose unit and kind are not looked at; false
// if there is none.
func (r *Report) median(table, part, way string, load int) (float64, bool) {
	for _, s := range r.Series {
		if s.Table == table && s.Part == part && s.Way == way && s.Load == load {
			return s.summary().median, true
		}
	}
	return 0, false
}

// loads are those that a table has, ascending.
func (r *Report) loads(table string) []int {
	var list []int
	for _, s := range r.Series {
		if s.Table == table {
			list = append(list, s.Load)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Read reads the reports in a file that Merged.JSON or Report.JSON wrote. name
// stands for the file in errors.
func Read(r io.Reader, name string) ([]*Report, error) {
	var raw struct {
		Report
		Reports []*Report `json:"reports"`
	}
	if err := json.NewDecoder(r).Decode(&raw); err != nil {
		return nil, fmt.Errorf("read report %s: %w: it must be what bench churn -o json wrote", name, err)
	}
	list := raw.Reports
	if list == nil {
		list = []*Report{&raw.Report}
	}
	for _, one := range list {
		if one.Format != reportFormat {
			return nil, fmt.Errorf("read report %s: format %d, this version reads %d: measure again with it", name, one.Format, reportFormat)
		}
	}
	return list, nil
}
