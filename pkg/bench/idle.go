package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The table idle: what a device costs that is attached and not used.

// A footprint is what a server, its workers and the kernel take at one moment.
type footprint struct {
	server, worker process
	// Of the whole machine, in KiB (/proc/meminfo).
	available, slab, percpu float64
}

// process sums up one or more processes; memory in KiB.
type process struct{ rss, pss, threads, files float64 }

func (b *bench) addIdle(before, now footprint, n int) {
	per := func(part, unit string, x float64) {
		b.report.add(Key{Table: TableIdle, Part: part, Unit: unit, Way: wayServer, Load: n}, x/float64(n))
	}
	per("worker, RSS", "KiB", now.worker.rss-before.worker.rss)
	per("worker, PSS", "KiB", now.worker.pss-before.worker.pss)
	per("server, RSS", "KiB", now.server.rss-before.server.rss)
	per("server, PSS", "KiB", now.server.pss-before.server.pss)
	per("the machine's MemAvailable, less by", "KiB", before.available-now.available)
	per("kernel: slab", "KiB", now.slab-before.slab)
	per("kernel: per CPU", "KiB", now.percpu-before.percpu)
	per("threads", "", now.worker.threads+now.server.threads-before.worker.threads-before.server.threads)
	per("descriptors", "", now.worker.files+now.server.files-before.worker.files-before.server.files)
}

// takeFootprint looks at a server and at its children, the workers.
func takeFootprint(server int) (f footprint, err error) {
	if f.server, err = lookAt(server); err != nil {
		return f, err
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return f, err
	}
	for _, path := range stats {
		if parentOf(path) != server {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		p, err := lookAt(pid)
		if err != nil {
			return f, err
		}
		f.worker.rss += p.rss
		f.worker.pss += p.pss
		f.worker.threads += p.threads
		f.worker.files += p.files
	}
	mem, err := readFields("/proc/meminfo")
	f.available, f.slab, f.percpu = mem["MemAvailable"], mem["Slab"], mem["Percpu"]
	return f, err
}

func lookAt(pid int) (p process, err error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	status, err := readFields(dir + "status")
	if err != nil {
		return p, err
	}
	p.rss, p.threads = status["VmRSS"], status["Threads"]
	rollup, err := readFields(dir + "smaps_rollup")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // kernels without it have no PSS
		return p, err
	}
	p.pss = rollup["Pss"]
	files, err := os.ReadDir(dir + "fd")
	p.files = float64(len(files))
	return p, err
}

// readFields reads lines of "Name:   number" and leaves out others.
func readFields(path string) (map[string]float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := make(map[string]float64)
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, rest, ok := strings.Cut(lines.Text(), ":")
		words := strings.Fields(rest)
		if !ok || len(words) == 0 {
			continue
		}
		if n, err := strconv.ParseFloat(words[0], 64); err == nil {
			fields[name] = n
		}
	}
	return fields, nil
}

// parentOf reads a process's parent out of its stat file; 0 if it has ended.
func parentOf(stat string) int {
	text, err := os.ReadFile(stat)
	if err != nil {
		return 0
	}
	// The command's name may hold anything, but no other parenthesis follows it.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}
