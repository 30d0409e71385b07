package covered

import (
	"os"
	"strings"
	"testing"
)

func TestInGuest(t *testing.T) {
	if Sign(3) != 1 {
		t.Error("3 is not positive")
	}
	if b, err := os.ReadFile("covered.go"); err != nil || !strings.Contains(string(b), "package covered") {
		t.Errorf("the package's directory is not the working directory: %v", err)
	}
	if _, err := os.Stat("/dev/ublk-control"); err != nil {
		t.Error(err)
	}
	if os.Getuid() != 0 || os.Getenv("TEST_WORD") != "word" {
		t.Errorf("user %d, TEST_WORD=%s", os.Getuid(), os.Getenv("TEST_WORD"))
	}
}
