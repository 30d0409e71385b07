package command

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if file := os.Getenv("COMMAND_TEST_PID_FILE"); file != "" {
		fmt.Println(Run(context.Background(), "sh", "-c", "echo $$ > "+file+".new && mv "+file+".new "+file+" && exec sleep 1000"))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// What a program was started for is done anew by the next process, on the same device.
func TestAProgramEndsWithTheProcessThatStartedIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "COMMAND_TEST_PID_FILE="+file)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid string
	wait(t, "the program to run", func() bool {
		text, _ := os.ReadFile(file)
		pid = strings.TrimSpace(string(text))
		return pid != ""
	})
	if err := parent.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	wait(t, "the program to end", func() bool {
		status, err := os.ReadFile("/proc/" + pid + "/status")
		return err != nil || strings.Contains(string(status), "State:\tZ") // nobody may have waited for it yet
	})
}

func wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited ten seconds for %s", what)
		}
	}
}
