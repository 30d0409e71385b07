//go:build ublk && linux

package kernel

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// privateDev runs a program with a /dev of its own, as a container has it: with the
// nodes of the time when it was made, and none that the kernel adds.
const privateDev = `set -e
mkdir -p /run/dev
mount -t tmpfs dev /run/dev
cp -a /dev/null /dev/zero /dev/random /dev/urandom /run/dev/
mount --move /run/dev /dev
exec "$0" "$@"`

// Where nodes do not appear by themselves, the server makes those that it and its
// callers need: of the driver, of devices, of disks.
func TestADevWithoutNodesIsFilled(t *testing.T) {
	n := makeNode(t, func(pool string) { mount(t, makeFS(t, "xfs", loopDevice(t, 1<<30)), pool, "xfs") })
	n.flags = []string{"--http-address", httpAddress}
	n.within = []string{"unshare", "--mount", "sh", "-c", privateDev}
	n.begin()
	inside := func(script string) string {
		t.Helper()
		out, err := exec.Command("nsenter", "-t", fmt.Sprint(n.server.Process.Pid), "-m", "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if fs := inside("stat -f -c %T /dev"); fs != "tmpfs" {
		t.Fatalf("the server's /dev is a %s", fs)
	}
	d := n.attach("v", 16<<20, client.AttachOptions{})
	inside("test -b " + d.Path + " && echo mine | dd of=" + d.Path + " bs=4096 conv=fsync,sync 2>/dev/null")
	n.kill()
	n.start() // in another /dev, with neither the char device nor the disk
	n.live("v")
	if got := command(t, "head", "-c", "4", d.Path); got != "mine" {
		t.Errorf("the disk reads %q", got)
	}
	if err := n.client.Detach(n.ctx(), "v"); err != nil {
		t.Fatal(err)
	}
	inside("test ! -e " + d.Path)
}
