package controller

import (
	"context"
	"testing"
	"time"
)

func TestWaiters(t *testing.T) {
	var w waiters
	a, doneA := w.add("v1")
	b, doneB := w.add("v1")
	other, doneOther := w.add("v2")
	w.wake("v1")
	w.wake("v1") // must not block although nobody has read
	for name, c := range map[string]<-chan struct{}{"first": a, "second": b} {
		select {
		case <-c:
		default:
			t.Errorf("%s waiter was not woken", name)
		}
	}
	select {
	case <-other:
		t.Error("a waiter for another volume was woken")
	default:
	}
	doneA()
	doneB()
	doneOther()
	if len(w.calls) != 0 {
		t.Errorf("left behind: %v", w.calls)
	}
}

func TestEarly(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, cancelEarly := early(ctx)
	defer cancelEarly()
	before, _ := ctx.Deadline()
	after, ok := e.Deadline()
	if gap := before.Sub(after); !ok || gap != time.Second {
		t.Errorf("ends %v before the deadline, want 1 s", gap)
	}
	e, cancelEarly = early(t.Context())
	defer cancelEarly()
	if _, ok := e.Deadline(); ok {
		t.Error("a deadline was made up")
	}
}
