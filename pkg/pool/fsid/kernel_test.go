//go:build ublk

package fsid

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// What mkfs.xfs of the guest makes, in the judgement of its xfs_db and xfs_repair.
// Mounting is tested where file systems are: pkg/driver/node.
func TestXFS(t *testing.T) {
	for name, c := range map[string]struct {
		size int64
		more []string
	}{
		"the least":         {300 << 20, nil},
		"4 KiB sectors":     {1 << 30, []string{"-s", "size=4096"}},
		"512 byte sectors":  {1 << 30, []string{"-s", "size=512"}},
		"many groups":       {1 << 30, []string{"-d", "agcount=13"}},
		"a striped log":     {1 << 30, []string{"-l", "su=32k"}},
		"100 GiB":           {100 << 30, nil},
		"with rmap":         {1 << 30, []string{"-m", "rmapbt=1"}},
		"no feature of 5.x": {1 << 30, []string{"-m", "bigtime=0,inobtcount=0"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := made(t, c.size, "mkfs.xfs", append([]string{"-q", "-f", "-K"}, c.more...)...)
			old := xfsDB(t, f.Name(), 0, "uuid")
			id := uuid.New()
			if err := Set(f, "xfs", c.size, id); err != nil {
				t.Fatal(err)
			}
			groups := xfsDB(t, f.Name(), 0, "agcount")
			for n := 0; fmt.Sprint(n) != groups; n++ {
				if got, meta := xfsDB(t, f.Name(), n, "uuid"), xfsDB(t, f.Name(), n, "meta_uuid"); got != id.String() || meta != old {
					t.Errorf("group %d: uuid %s, want %s; meta_uuid %s, want %s", n, got, id, meta, old)
				}
				if crc := xfsDB(t, f.Name(), n, "crc"); !strings.Contains(crc, "(correct)") {
					t.Errorf("group %d: crc %s", n, crc)
				}
			}
			program(t, "xfs_repair", "-n", f.Name())
			if err := Check(f, "xfs", c.size); err == nil {
				t.Error("an image whose UUID was set is taken for a fresh one")
			}
		})
	}
}

func xfsDB(t *testing.T, file string, group int, field string) string {
	t.Helper()
	out := program(t, "xfs_db", "-r", "-c", fmt.Sprintf("sb %d", group), "-c", "p "+field, file)
	_, value, _ := strings.Cut(strings.TrimSpace(out), " = ")
	return value
}
