//go:build soak && linux

package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// use checks what the round before left, writes, and checks again. Now and then somebody
// cuts or meddles meanwhile.
func use(v *volume, s *shadow, size int64) (err error) {
	f, err := v.open(size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := s.check(f, v.rand); err != nil {
		return fmt.Errorf("before any write: %w", err)
	}
	var others sync.WaitGroup
	var copyErr, meddleErr error
	if v.rand.IntN(4) == 0 {
		r := rand.New(rand.NewPCG(v.rand.Uint64(), 0))
		others.Go(func() { copyErr = v.copied(s, r) })
	}
	if v.rand.IntN(4) == 0 {
		r := rand.New(rand.NewPCG(v.rand.Uint64(), 0))
		others.Go(func() { meddleErr = v.meddle(r) })
	}
	done := make(chan struct{})
	go func() {
		others.Wait()
		close(done)
	}()
	err = s.writeUntil(done, 1+v.rand.IntN(3), f, v.rand)
	<-done
	if err = errors.Join(err, copyErr, meddleErr); err != nil {
		return err
	}
	return s.check(f, v.rand)
}

// open opens what the pod would: the device, or a file of that size in the file system.
func (v *volume) open(size int64) (*os.File, error) {
	if v.fsType == "" {
		return os.OpenFile(v.target(), os.O_RDWR|unix.O_DIRECT, 0)
	}
	f, err := os.OpenFile(filepath.Join(v.target(), "data"), os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// writeUntil writes at least a few times, and with pauses until done is closed.
func (s *shadow) writeUntil(done <-chan struct{}, least int, f *os.File, r *rand.Rand) error {
	for n := 0; ; n++ {
		if err := s.write(f, r); err != nil {
			return err
		}
		if n+1 < least {
			continue
		}
		select {
		case <-done:
			return nil
		case <-time.After(time.Duration(r.IntN(50)) * time.Millisecond):
		}
	}
}

// useFailing does the same with a volume whose disk fails at times. Only then may it
// answer EIO, and whatever it answers, it may never give other bytes than were written.
func useFailing(v *volume, s *shadow, size int64) (err error) {
	var f *os.File
	try := func(do func() error) error {
		spells := v.n.failing.spells.Load()
		err := do()
		if !errors.Is(err, unix.EIO) || !v.failing(spells) {
			return err
		}
		v.n.errors.Add(1)
		return nil
	}
	if f, err = v.open(size); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for range 2 + v.rand.IntN(6) {
		if err := try(func() error { return s.check(f, v.rand) }); err != nil {
			return err
		}
		if err := try(func() error { return s.write(f, v.rand) }); err != nil {
			return err
		}
		time.Sleep(time.Duration(v.rand.IntN(500)) * time.Millisecond)
	}
	return try(func() error { return s.check(f, v.rand) })
}
