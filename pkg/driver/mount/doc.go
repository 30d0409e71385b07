// Package mount makes file systems on volumes and mounts them: what the node
// service does to a device, one operation a file.
//
// Mounting is done by system calls. Forking mount(8), or systemd-run around it,
// would cost more than the mount itself when hundreds of pods start at once, and
// reading all of mountinfo to see one mount costs more with every pod. Commands
// are run only where there is no other way: mkfs, fsck, and blkid on a device that
// is not blank. A volume that is cloned from a template needs none of them.
//
// The rule above all: a device is formatted only if it is proven blank, or if a
// mkfs of ours that began when it was blank never ended.
package mount
