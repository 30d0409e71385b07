package pool

import (
	"fmt"
	"os"
)

// Rewrite has change work on a clone of a volume's file, by a path that this process and
// its children can open, and gives the clone the volume's name when it is durable. At every
// instant, also of a crash, the volume is as it was or as change has left it. It is no
// twin afterwards. The caller makes sure that nobody has the file open to write.
//
// After an error of change the volume is as it was. The error is a *NoReflinkError where
// files can't be cloned.
func (p *Pool) Rewrite(id string, change func(path string) error) error {
	if !p.reflink {
		return &NoReflinkError{p.o.Name, p.fsType}
	}
	volume, err := p.openVolume(id)
	if err != nil {
		return err
	}
	defer volume.Close()
	clone, err := cloneOf(volume, p.templates.dir)
	if err != nil {
		return fmt.Errorf("clone volume %s in pool %s: %w", id, p.o.Name, err)
	}
	defer clone.Close() // without a name it vanishes then
	if err := change(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), clone.Fd())); err != nil {
		return fmt.Errorf("change volume %s in pool %s: %w", id, p.o.Name, err)
	}
	if err := p.replaceVolume(id, clone); err != nil {
		return fmt.Errorf("replace volume %s in pool %s: %w", id, p.o.Name, err)
	}
	return nil
}
