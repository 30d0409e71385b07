package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

// Merged are reports side by side, one for each label.
type Merged struct {
	Reports []*Report `json:"reports"`
}

// Merge puts the rounds of reports with the same label together, in the order
// given. Reports that share a label and differ in other conditions are an error:
// their figures can't be compared, let alone averaged.
func Merge(reports ...*Report) (*Merged, error) {
	m := &Merged{}
	for _, r := range reports {
		into := m.label(r.Conditions.Label)
		if into == nil {
			m.Reports = append(m.Reports, &Report{Format: reportFormat, Conditions: r.Conditions})
			into = m.Reports[len(m.Reports)-1]
		}
		var same bool
		if into.Conditions, same = into.Conditions.with(r.Conditions); !same {
			return nil, fmt.Errorf("merge reports labelled %q: the conditions differ: %+v, and %+v: measure again, or give them different labels (--label)",
				r.Conditions.Label, into.Conditions, r.Conditions)
		}
		into.Kinds = append(into.Kinds, r.Kinds...)
		for _, s := range r.Series {
			for _, round := range s.Rounds {
				into.add(s.Key, round...)
			}
		}
	}
	return m, nil
}

// with adds the sizes of tables that only o has measured, and reports whether all
// else is the same.
func (c Conditions) with(o Conditions) (Conditions, bool) {
	c.Devices, o.Devices = cmp.Or(c.Devices, o.Devices), cmp.Or(o.Devices, c.Devices)
	c.Volumes, o.Volumes = cmp.Or(c.Volumes, o.Volumes), cmp.Or(o.Volumes, c.Volumes)
	return c, c == o
}

func (m *Merged) label(l string) *Report {
	i := slices.IndexFunc(m.Reports, func(r *Report) bool { return r.Conditions.Label == l })
	if i < 0 {
		return nil
	}
	return m.Reports[i]
}

// kind returns the first report of a kernel that deletes that way, or nil.
func (m *Merged) kind(k ublk.DeleteKind) *Report {
	i := slices.IndexFunc(m.Reports, func(r *Report) bool { return r.kind() == k.String() })
	if i < 0 {
		return nil
	}
	return m.Reports[i]
}

// JSON writes everything, raw samples included; Read reads it.
func (m *Merged) JSON(w io.Writer) error {
	var what any = m
	if len(m.Reports) == 1 {
		what = m.Reports[0]
	}
	return json.NewEncoder(w).Encode(what)
}
