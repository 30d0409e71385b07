package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// A measurement is not waited for, is not begun twice, and says in the end how it went.
func TestAMeasurementIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := &gauge{every: 30 * time.Second}, &pool.Pool{}
		n, result := 0, errors.New("bad disk")
		check := func(after time.Duration, want error, begun int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			err := g.last(p, func() error {
				n++
				time.Sleep(time.Minute)
				return result
			})
			synctest.Wait()
			if err != want || n != begun {
				t.Errorf("got %v with %d begun, want %v and %d", err, n, want, begun)
			}
		}
		check(0, nil, 0) // opening has just done that
		check(30*time.Second, nil, 1)
		check(50*time.Second, nil, 1) // under way
		check(20*time.Second, result, 1)
		bad := result
		result = nil
		check(30*time.Second, bad, 2)
		check(61*time.Second, nil, 2)
	})
}
