package kernel

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A deletion in the driver's shape, with another function around it on both sides that must not be touched.
const before = `static int other(void)
{
	mutex_unlock(&ublk_ctl_mutex);
	return 0;
}

static int ublk_ctrl_del_dev(struct ublk_device **p, bool wait)
{
	int ret = mutex_lock_killable(&ublk_ctl_mutex);

	if (ret)
		return ret;
	remove(*p);

	/* gone */
	*p = NULL;
	ublk_put_device(ub);
	mutex_unlock(&ublk_ctl_mutex);

	return wait ? idle() : 0;
}

static void last(void)
{
	ublk_put_device(ub);
}
`

func TestUnlockBeforeRelease(t *testing.T) {
	got, err := unlockBeforeRelease(before)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(before,
		"\tublk_put_device(ub);\n\tmutex_unlock(&ublk_ctl_mutex);\n",
		"\tmutex_unlock(&ublk_ctl_mutex);\n\tublk_put_device(ub);\n", 1)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := unlockBeforeRelease(got); !errors.Is(err, errAlreadyFixed) {
		t.Errorf("the fixed driver: %v, want errAlreadyFixed", err)
	}
}

func TestUnlockBeforeReleaseRefusesUnknownShapes(t *testing.T) {
	replace := func(old, new string) string { return strings.Replace(before, old, new, 1) }
	for name, source := range map[string]string{
		"no such function":            replace("ublk_ctrl_del_dev", "ublk_ctrl_delete"),
		"only a declaration of it":    "static int ublk_ctrl_del_dev(struct ublk_device **p, bool wait);\nint f(void)\n{\n}\n",
		"two releases":                replace("\tremove(*p);\n", "\tublk_put_device(ub);\n"),
		"two unlocks":                 replace("\tremove(*p);\n", "\tmutex_unlock(&ublk_ctl_mutex);\n"),
		"no release":                  replace("\t*p = NULL;\n\tublk_put_device(ub);\n", "\t*p = NULL;\n"),
		"the release in a branch":     replace("\tublk_put_device(ub);\n", "\tif (ub)\n\t\tublk_put_device(ub);\n"),
		"a lock that falls by itself": replace("int ret = mutex_lock_killable(&ublk_ctl_mutex)", "guard(mutex)(&ublk_ctl_mutex)"),
		"the lock taken last": replace("\tmutex_unlock(&ublk_ctl_mutex);\n\n\treturn wait",
			"\tmutex_unlock(&ublk_ctl_mutex);\n\tmutex_lock(&ublk_ctl_mutex);\n\treturn wait"),
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := unlockBeforeRelease(source); err == nil || errors.Is(err, errAlreadyFixed) {
				t.Errorf("accepted: %v\n%s", err, got)
			}
		})
	}
}
