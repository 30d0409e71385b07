// Command agent is the first process of a guest. As process 1 it sets the guest up and collects orphans; a child of it runs
// commands for the rig. It uses the standard library only: the rig compiles it from sources that it carries.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/csi-ublk/csi-ublk/test/vm/guest/wire"
)

func main() {
	if os.Getpid() != 1 {
		if err := serve(); err != nil {
			fmt.Println("agent:", err)
			os.Exit(1)
		}
		return
	}
	err := boot()
	if err != nil {
		fmt.Println("agent: setup:", err)
	}
	agent, err := spawn(err)
	if err != nil {
		fmt.Println("agent: no serving process:", err)
	} else {
		reap(agent)
	}
	powerOff()
}

// spawn starts the serving process and tells it how the setup went. The binary is reached through /proc because the initial
// file system that holds it is out of sight by now.
func spawn(setup error) (pid int, err error) {
	cmd := exec.Command("/proc/self/exe", "serve")
	cmd.Env = environment
	if setup != nil {
		cmd.Env = append(cmd.Env, setupError+"="+setup.Error())
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}

const (
	setupError = "AGENT_SETUP_ERROR"
	configFile = "/run/agent.json" // the configuration, for the serving process
)

// environment is what every command gets.
var environment = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=/tmp", "LANG=C.UTF-8",
}

// reap collects ended processes until the serving one is among them.
func reap(agent int) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if pid == agent || err == syscall.ECHILD {
			return
		}
	}
}

// powerOff ends the guest with its disks in order.
func powerOff() {
	syscall.Kill(-1, syscall.SIGTERM)
	syscall.Kill(-1, syscall.SIGKILL)
	syscall.Sync()
	_ = syscall.Mount("", "/", "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// readConfig reads the configuration that the rig wrote.
func readConfig(path string) (wire.Config, error) {
	var c wire.Config
	b, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("decode %s: %w", path, err)
	}
	return c, nil
}
