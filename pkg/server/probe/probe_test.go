package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csi-ublk/csi-ublk/pkg/ublk"
)

type driver struct{ have ublk.Features }

func (d driver) Features() ublk.Features { return d.have }
func (driver) Close() error              { return nil }
func (driver) ProbeDeleteKind(context.Context) (ublk.DeleteKind, error) {
	return ublk.DeleteLocked, nil
}

const enough = ublk.UserCopy | ublk.UserRecovery | ublk.UserRecoveryReissue

func find(t *testing.T, r Report, name string) Check {
	t.Helper()
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check %q in %+v", name, r.Checks)
	return Check{}
}

func TestIoUringForbiddenToAllIsFoundAndHasARemedy(t *testing.T) {
	for value, ok := range map[string]bool{"0\n": true, "1\n": true, "2\n": false} {
		root := t.TempDir()
		path := filepath.Join(root, "proc/sys/kernel")
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "io_uring_disabled"), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		r := Run(t.Context(), Options{Root: root, Open: func() (Driver, error) { return driver{enough}, nil }})
		c := find(t, r, "io_uring")
		if c.OK != ok || ok != (c.Remedy == "") {
			t.Errorf("io_uring_disabled=%q: %+v, want ok %t", value, c, ok)
		}
		if !ok && r.Usable {
			t.Errorf("io_uring_disabled=%q: usable", value)
		}
	}
}

func TestAMachineWithoutTheDriverIsNotUsableAndSaysWhatToDo(t *testing.T) {
	r := Run(t.Context(), Options{Root: t.TempDir(), Open: func() (Driver, error) { return nil, errors.New("no driver") }})
	if r.Usable {
		t.Error("usable")
	}
	if c := find(t, r, "ublk_drv module"); c.OK || !strings.Contains(c.Remedy, "modprobe ublk_drv") {
		t.Errorf("module check %+v, want one that tells to load it", c)
	}
}

func TestAMissingRequiredFeatureIsNotUsable(t *testing.T) {
	for name, c := range map[string]struct {
		have ublk.Features
		want int // required features that are missing
	}{
		"all that is required":      {enough, 0},
		"no recovery":               {ublk.UserCopy, 2},
		"optional ones don't count": {enough | ublk.UpdateSize, 0},
	} {
		t.Run(name, func(t *testing.T) {
			missing := 0
			for _, f := range listFeatures(c.have) {
				if f.Required && !f.Offered {
					missing++
				}
			}
			if missing != c.want {
				t.Errorf("%d required features missing, want %d", missing, c.want)
			}
		})
	}
}
