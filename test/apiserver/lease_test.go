//go:build kube

package apiserver

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func newReplica(t *testing.T) *replica {
	t.Helper()
	r, err := startReplica(t.TempDir())
	must(t, err)
	t.Cleanup(func() {
		_ = r.stop()
		if log, _ := os.ReadFile(r.log); t.Failed() || bytes.Contains(log, []byte("DATA RACE")) {
			t.Errorf("log of the replica:\n%s", log)
		}
	})
	return r
}

// standby checks that a replica serves its socket and refuses to work.
func standby(t *testing.T, r *replica) {
	t.Helper()
	p, err := r.Probe(t.Context(), &csi.ProbeRequest{})
	if err != nil || p.Ready.GetValue() {
		t.Errorf("Probe of a standby: %v, %v; want ready=false", p, err)
	}
	_, err = r.CreateVolume(t.Context(), request("standby", "standby", mib))
	want(t, err, codes.Unavailable, "does not hold the lease")
	_, err = r.ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	want(t, err, codes.Unavailable)
}

// TestLease hands the lease from replica to replica, in every way that there is,
// and checks each time that the ledger of the next one knows all volumes.
func TestLease(t *testing.T) {
	newNode(t, "lease-1", "lease", 100*mib)
	seen(t, "lease-1", "lease", 100*mib)
	volumes := 0
	fill := func() { // one volume more, through whoever leads
		t.Helper()
		volumes++
		name := fmt.Sprintf("lease-v-%d", volumes)
		_, err := create(t, request(name, "lease", 20*mib))
		must(t, err)
		t.Cleanup(func() { must(t, remove(t, name)) })
	}
	takeover := func(next *replica, within time.Duration) {
		t.Helper()
		start := time.Now()
		must(t, next.awaitReady(t.Context()))
		if took := time.Since(start); took > within {
			t.Errorf("took over after %v, want %v at most", took, within)
		}
		leader = next
		if got, want := capacityOf(t, "lease-1", "lease"), int64(100-20*volumes)*mib; got != want {
			t.Errorf("the new ledger has %d bytes, want %d", got, want)
		}
		_, err := create(t, request("lease-too-much", "lease", int64(100-20*volumes)*mib+1))
		want(t, err, codes.ResourceExhausted)
	}
	// The last leader serves the other tests as well: it must outlive this one.
	first, second := leader, newReplica(t)
	fill()
	standby(t, second)

	// In order: the lease is released, the next has it at once.
	if err := first.stop(); err != nil {
		log, _ := os.ReadFile(first.log)
		t.Errorf("SIGTERM: %v, want exit code 0\n%s", err, log)
	}
	takeover(second, 12*time.Second) // a lease that was not released runs for 15
	fill()

	// Killed: the lease has to run out.
	third := newReplica(t)
	standby(t, third)
	must(t, second.cmd.Process.Kill())
	<-second.exited
	takeover(third, 45*time.Second)
	fill()

	// Lost: somebody else holds it. The process ends by itself, with calls cut.
	var lease coordinationv1.Lease
	must(t, api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "csi-ublk-controller"}, &lease))
	other := "somebody-else"
	lease.Spec.HolderIdentity = &other
	must(t, api.Update(t.Context(), &lease))
	select {
	case <-third.exited:
		if code := third.cmd.ProcessState.ExitCode(); code != 1 {
			t.Errorf("ended with code %d, want 1", code)
		}
	case <-time.After(45 * time.Second):
		t.Error("a replica without the lease goes on")
	}
	last, err := startReplica(filepath.Join(filepath.Dir(kubeconfig), "last"))
	must(t, err)
	takeover(last, 45*time.Second)
	fill()
}
