package server

import (
	"os"
	"path/filepath"
)

// tempPrefix marks files that a crash left half written.
const tempPrefix = ".tmp-"

// replaceFile replaces a file so that whoever reads it, also after this process
// was killed, finds either what it held or all of data. sync, if not nil, is called
// with the file before it gets its name.
func replaceFile(path string, data []byte, sync func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), tempPrefix+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil && sync != nil {
		err = sync(f)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// writeFileDurably replaces a file so that also after a power cut it holds either
// what it did or all of data.
func writeFileDurably(path string, data []byte) error {
	// Before the rename: the name must never lead to a file without content.
	if err := replaceFile(path, data, syncFile); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return syncFile(d)
}

// syncFile is a variable for the test that pins the order of syncs and rename.
var syncFile = (*os.File).Sync
