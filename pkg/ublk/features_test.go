package ublk

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequireNamesWhatIsMissing(t *testing.T) {
	have := UserCopy | UserRecovery
	if err := have.Require(UserCopy); err != nil {
		t.Error(err)
	}
	err := have.Require(UserCopy | UpdateSize | SafeStop | 1<<40)
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Fatalf("%v does not say that it is unsupported", err)
	}
	for _, want := range []string{"UPDATE_SIZE (Linux 6.16)", "SAFE_STOP_DEV (Linux 7.0)", "bit 40"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "USER_COPY") {
		t.Errorf("%q names what is there", err)
	}
}

func TestFeatureNamesFollowTheBits(t *testing.T) {
	got := (ZeroCopy | UserCopy | Quiesce | IODescSize | 1<<63).Names()
	want := []string{"ZERO_COPY", "USER_COPY", "QUIESCE", "IO_DESC_SIZE", "bit 63"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// The table is indexed by bit: the last constant must be its last row.
	if IODescSize != 1<<(len(featureTable)-1) {
		t.Errorf("%d rows for %b", len(featureTable), IODescSize)
	}
}
