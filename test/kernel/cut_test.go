//go:build ublk && linux

package kernel

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// pair is two volumes and a name for each copy.
func pair(n *node) (a, b *os.File, copies func(i int) []client.Copy) {
	n.t.Helper()
	a = openDisk(n.t, n.attach("a", 16<<20, client.AttachOptions{}).Path)
	b = openDisk(n.t, n.attach("b", 16<<20, client.AttachOptions{}).Path)
	return a, b, func(i int) []client.Copy {
		var list []client.Copy
		for _, id := range []string{"a", "b"} {
			target := n.file(fmt.Sprintf("copy-%d-of-%s", i, id))
			if err := os.WriteFile(target, nil, 0o600); err != nil {
				n.t.Fatal(err)
			}
			list = append(list, client.Copy{VolumeID: id, TargetPath: target})
		}
		return list
	}
}

func TestACutRefusesWhatItCanNotDo(t *testing.T) {
	n := newNode(t)
	_, b, copies := pair(n)
	good := copies(0)
	cut := func(list ...client.Copy) error {
		_, err := n.client.Cut(n.ctx(), list)
		return err
	}
	wantCode(t, "nothing", cut(), codes.InvalidArgument)
	wantCode(t, "a volume that is not attached", cut(good[0], client.Copy{VolumeID: "c", TargetPath: n.file("copy-0-of-b")}), codes.NotFound)
	wantCode(t, "a target that has something", cut(good[0], client.Copy{VolumeID: "b", TargetPath: n.file("b")}), codes.InvalidArgument)
	wantCode(t, "a target outside the pools", cut(client.Copy{VolumeID: "a", TargetPath: n.log.Name()}), codes.InvalidArgument)
	wantCode(t, "a target that is not there", cut(good[0], client.Copy{VolumeID: "b", TargetPath: n.file("none")}), codes.NotFound)
	for _, c := range good {
		if st, err := os.Stat(c.TargetPath); err != nil || st.Size() != 0 {
			t.Errorf("%s: %d bytes, %v", c.TargetPath, st.Size(), err)
		}
	}
	wantCode(t, "a good one", cut(good...), codes.OK)
	writeDisk(t, b, 0, make([]byte, 4096)) // and goes on
}

func TestAPoolWithoutReflinkHasNoCuts(t *testing.T) {
	n := newNodeOn(t, func(pool string) { mount(t, makeFS(t, "ext4", loopDevice(t, 256<<20)), pool, "ext4") })
	a, _, copies := pair(n)
	list := copies(0)
	_, err := n.client.Cut(n.ctx(), list)
	wantCode(t, "cut on ext4", err, codes.FailedPrecondition)
	writeDisk(t, a, 0, make([]byte, 4096))
	if status.Code(err) == codes.FailedPrecondition && !strings.Contains(err.Error(), "reflink") {
		t.Errorf("%v: it does not say what would help", err)
	}
}
