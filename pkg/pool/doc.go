// Package pool keeps the bytes of volumes on a node. A pool is a directory on a
// local file system, set up from an existing directory (path), a blank disk
// (device) or an image file on the root disk (image), and always seen at
// <state>/pools/<name>:
//
//	volumes/<id>    one sparse file a volume: reads zeros where never written
//	snapshots/<id>  a volume as it was at one moment, by shared extents
//	templates/      file systems that volumes are cloned from, one a kind and size
//	trash/          files of deleted volumes until their space is given back
//
// A volume counts with its full size from its creation on, so nothing is promised
// twice; a snapshot counts with what it had allocated at its cut, and what is
// deleted with what it had until that is free. All of it is kept in memory and read
// from the directory once, when the pool is opened: no call lists a directory.
//
// The package knows neither Kubernetes nor ublk. It leaves pools mounted when the
// process ends, because their volumes stay in use.
package pool
