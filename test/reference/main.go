// Command reference prints docs/parameters.md, the reference of all that users can set on
// volumes, out of the code that reads it.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/controller"
	"github.com/csi-ublk/csi-ublk/pkg/driver/limits"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/driver/node"
)

func main() {
	w := bufio.NewWriter(os.Stdout)
	write(w)
	if err := w.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func write(w io.Writer) {
	device := controller.Reference()
	rates := limits.Reference()
	fmt.Fprint(w, `# Parameters

Written by `+"`make generate`"+` out of the code that reads them. A key that is not here is
refused by name. All values are strings, so numbers need quotes.

`)
	section(w, "StorageClass", "`parameters` of a StorageClass with `provisioner: csi-ublk.io`.", slices.Concat(device, []driver.Parameter{{
		Key: "csi.storage.k8s.io/fstype", Values: choices(mount.FSTypes), Unset: "`" + mount.FSTypes[0] + "`", Does: "the file system; raw block volumes have none",
	}}, rates))
	section(w, "VolumeAttributesClass", "`parameters` of a VolumeAttributesClass with `driverName: csi-ublk.io`. They win over those of the\nStorageClass, and can change while a volume is used; a key that a class does not have stays as it\nis ([limits.md](limits.md)).", changes(rates))
	section(w, "Inline volumes", "`volumeAttributes` of a pod's volume with `csi: {driver: csi-ublk.io}`. The file system is `fsType`\nbeside them ([ephemeral.md](ephemeral.md)).", slices.Concat(node.Reference(), device, rates))
	fmt.Fprint(w, `## VolumeSnapshotClass and VolumeGroupSnapshotClass

They have no parameters.
`)
}

// changes are the same for what exists already, where a key that is left out changes
// nothing.
func changes(list []driver.Parameter) []driver.Parameter {
	list = slices.Clone(list)
	for i := range list {
		list[i].Unset = "as before"
	}
	return list
}

func section(w io.Writer, title, what string, list []driver.Parameter) {
	fmt.Fprintf(w, "## %s\n\n%s\n\n| key | values | if it is left out | what it sets |\n|---|---|---|---|\n", title, what)
	for _, p := range list {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", p.Key, p.Values, p.Unset, p.Does)
	}
	fmt.Fprintln(w)
}

func choices(list []string) string {
	quoted := make([]string, len(list))
	for i, c := range list {
		quoted[i] = "`" + c + "`"
	}
	return driver.OneOf(quoted)
}
