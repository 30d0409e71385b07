package kernel

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// errAlreadyFixed is the answer for a driver whose deletion already waits outside of the global lock.
var errAlreadyFixed = errors.New("the driver of this kernel has the fix already")

var (
	deleteFunc  = regexp.MustCompile(`(?ms)^static int ublk_ctrl_del_dev\([^{;]*\{\n.*?^\}\n`)
	unlockStmt  = regexp.MustCompile(`(?m)^\tmutex_unlock\(&ublk_ctl_mutex\);\n`)
	releaseStmt = regexp.MustCompile(`(?m)^\tublk_put_device\(\w+\);\n`)
	lockStmt    = regexp.MustCompile(`\bmutex_lock\w*\(&ublk_ctl_mutex\)`)
)

// unlockBeforeRelease changes the driver's source so that deleting a device gives ublk_ctl_mutex back before it drops the last
// reference. Dropping it waits for a grace period, and with the mutex held every other control command waits as well. The
// change is made only in a function of the known shape: lock once, release the device once, then unlock once, each at the
// function's own level.
func unlockBeforeRelease(source string) (string, error) {
	at := deleteFunc.FindStringIndex(source)
	if at == nil {
		return "", errors.New("find ublk_ctrl_del_dev: no such function")
	}
	body := source[at[0]:at[1]]
	locks := lockStmt.FindAllStringIndex(body, -1)
	unlocks := unlockStmt.FindAllStringIndex(body, -1)
	releases := releaseStmt.FindAllStringIndex(body, -1)
	if strings.Contains(body, "guard(mutex)") || len(locks) != 1 || len(unlocks) != 1 || len(releases) != 1 {
		return "", fmt.Errorf("ublk_ctrl_del_dev has an unknown shape: %d locks, %d unlocks, %d releases, want one each",
			len(locks), len(unlocks), len(releases))
	}
	lock, unlock, release := locks[0], unlocks[0], releases[0]
	if lock[0] > unlock[0] || lock[0] > release[0] {
		return "", errors.New("ublk_ctrl_del_dev has an unknown shape: the lock is not taken first")
	}
	if unlock[0] < release[0] {
		return "", errAlreadyFixed
	}
	statement := body[unlock[0]:unlock[1]]
	fixed := body[:release[0]] + statement + body[release[0]:unlock[0]] + body[unlock[1]:]
	return source[:at[0]] + fixed + source[at[1]:], nil
}
