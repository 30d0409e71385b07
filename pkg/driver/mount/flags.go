package mount

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Flags are mount options, sorted by who understands them.
type Flags struct {
	set, clear uintptr  // MS_* bits of a mount or a file system
	data       []string // what the file system's driver and the LSM are given
}

type bits struct{ set, clear uintptr }

var known = map[string]bits{
	"defaults":      {},
	"ro":            {set: unix.MS_RDONLY},
	"rw":            {clear: unix.MS_RDONLY},
	"suid":          {clear: unix.MS_NOSUID},
	"nosuid":        {set: unix.MS_NOSUID},
	"dev":           {clear: unix.MS_NODEV},
	"nodev":         {set: unix.MS_NODEV},
	"exec":          {clear: unix.MS_NOEXEC},
	"noexec":        {set: unix.MS_NOEXEC},
	"sync":          {set: unix.MS_SYNCHRONOUS},
	"async":         {clear: unix.MS_SYNCHRONOUS},
	"dirsync":       {set: unix.MS_DIRSYNC},
	"atime":         {clear: unix.MS_NOATIME},
	"noatime":       {set: unix.MS_NOATIME},
	"diratime":      {clear: unix.MS_NODIRATIME},
	"nodiratime":    {set: unix.MS_NODIRATIME},
	"relatime":      {set: unix.MS_RELATIME},
	"norelatime":    {clear: unix.MS_RELATIME},
	"strictatime":   {set: unix.MS_STRICTATIME},
	"nostrictatime": {clear: unix.MS_STRICTATIME},
	"lazytime":      {set: unix.MS_LAZYTIME},
	"nolazytime":    {clear: unix.MS_LAZYTIME},
	"silent":        {set: unix.MS_SILENT},
	"loud":          {clear: unix.MS_SILENT},
	"nofail":        {}, // of fstab, as the next
	"_netdev":       {},
}

// forbidden would turn a mount into another operation.
var forbidden = map[string]bool{
	"bind": true, "rbind": true, "move": true, "remount": true, "loop": true,
	"shared": true, "rshared": true, "slave": true, "rslave": true, "private": true, "rprivate": true,
	"unbindable": true, "runbindable": true,
}

// ParseFlags reads mount options as mount(8) takes them; each element may hold
// several, separated by commas outside quotes. What no table knows is left for the
// file system to judge, such as context="..." of SELinux, quotes included: its
// categories hold commas.
func ParseFlags(options []string) (Flags, error) {
	var f Flags
	for _, option := range options {
		for _, o := range splitOptions(option) {
			name, _, _ := strings.Cut(o, "=")
			b, ok := known[o]
			switch {
			case o == "":
			case forbidden[name] || strings.HasPrefix(o, "X-") || strings.HasPrefix(o, "x-"):
				return Flags{}, fmt.Errorf("mount option %q is not for volumes", name)
			case ok:
				f.set = f.set&^b.clear | b.set
				f.clear = f.clear&^b.set | b.clear
			default:
				f.data = append(f.data, o)
			}
		}
	}
	return f, nil
}

// WithReadOnly adds ro.
func (f Flags) WithReadOnly() Flags {
	f.set |= unix.MS_RDONLY
	f.clear &^= unix.MS_RDONLY
	return f
}

// ReadOnly says whether ro is set.
func (f Flags) ReadOnly() bool { return f.set&unix.MS_RDONLY != 0 }

func splitOptions(s string) []string {
	quoted := false
	return strings.FieldsFunc(s, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	})
}
