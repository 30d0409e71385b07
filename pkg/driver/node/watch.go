package node

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

const (
	// watchEvery is how often the devices are looked at: one call to the device server
	// for all of them, which reads memory only.
	watchEvery = 10 * time.Second
	// troubleLasts is for how long after the last failed request a volume counts as
	// having I/O errors.
	troubleLasts = 5 * time.Minute
)

// A VolumeWatch remembers what happened to the devices of this node lately. The zero
// value knows of no trouble.
type VolumeWatch struct {
	mu   sync.Mutex
	seen map[string]sighting
	away string // why the device server did not answer the last two times
}

// A sighting is what was seen of one volume's device.
type sighting struct {
	device     client.Device
	errorsAt   time.Time // when IOErrors was last seen to have grown
	recovering int       // how many looks in a row found it so
}

// Run looks at the devices until ctx ends. changed is told of each volume that has other
// problems than before; it must not block.
func (w *VolumeWatch) Run(ctx context.Context, list func(context.Context) ([]client.Device, error), changed func(volumeID string)) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	silent := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		look, cancel := context.WithTimeout(ctx, watchEvery/2)
		devices, err := list(look)
		cancel()
		if err == nil {
			silent = 0
			w.note(devices, time.Now(), changed)
			continue
		}
		// A server that is being restarted is back by the next time.
		if silent++; silent == 2 {
			w.noteAway(err, changed)
		}
	}
}

func (w *VolumeWatch) noteAway(err error, changed func(string)) {
	w.mu.Lock()
	w.away = fmt.Sprintf("the device server does not answer: %v", err)
	ids := maps.Clone(w.seen)
	w.mu.Unlock()
	for id := range ids {
		changed(id)
	}
}

// note takes over what the device server said.
func (w *VolumeWatch) note(devices []client.Device, now time.Time, changed func(string)) {
	w.mu.Lock()
	old, away := w.seen, w.away
	w.seen, w.away = make(map[string]sighting, len(devices)), ""
	var news []string
	for _, d := range devices {
		before, known := old[d.VolumeID]
		s := before.next(d, known, now)
		w.seen[d.VolumeID] = s
		if away != "" || reason(before.problems(now.Add(-watchEvery))) != reason(s.problems(now)) {
			news = append(news, d.VolumeID)
		}
	}
	for id, s := range old {
		if _, still := w.seen[id]; !still && reason(s.problems(now)) != "" {
			news = append(news, id)
		}
	}
	w.mu.Unlock()
	for _, id := range news {
		changed(id)
	}
}

func (s sighting) next(d client.Device, known bool, now time.Time) sighting {
	// Another attachment counts from zero again.
	if known && d.DeviceID != s.device.DeviceID {
		s, known = sighting{}, false
	}
	if d.IOErrors > s.device.IOErrors && (known || d.IOErrors > 0) {
		s.errorsAt = now
	}
	if d.State == client.Recovering {
		s.recovering++
	} else {
		s.recovering = 0
	}
	s.device = d
	return s
}

// Problems are those of a volume in use; none of one that was never seen.
func (w *VolumeWatch) Problems(volumeID string) []health.Problem {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s, known := w.seen[volumeID]
	if !known {
		return nil
	}
	list := s.problems(time.Now())
	if w.away != "" {
		list = append(list, health.Problem{Reason: health.ServerUnavailable, Message: w.away})
	}
	return list
}

// problems are the worst first.
func (s sighting) problems(now time.Time) []health.Problem {
	list := deviceProblems(s.device)
	if s.recovering > 1 {
		list = append(list, health.Problem{Reason: health.Recovering, Message: "the device's I/O waits for a worker: " + s.device.Message})
	}
	if !s.errorsAt.IsZero() && now.Sub(s.errorsAt) < troubleLasts {
		list = append(list, health.Problem{Reason: health.IOErrors, Message: fmt.Sprintf("requests have failed since the volume was attached, the last one less than %v ago; the metric csi_ublk_volume_errors_total says which", troubleLasts)})
	}
	return list
}

// deviceProblems is what a device's state alone says.
func deviceProblems(d client.Device) []health.Problem {
	switch {
	case d.DataLost:
		return []health.Problem{{Reason: health.FlushLost, Message: d.Message}}
	case d.State == client.Failed:
		return []health.Problem{{Reason: health.DeviceFailed, Message: d.Message}}
	}
	return nil
}

// reason is that of the worst problem, "" if there is none.
func reason(list []health.Problem) health.Reason {
	if len(list) == 0 {
		return ""
	}
	return list[0].Reason
}
