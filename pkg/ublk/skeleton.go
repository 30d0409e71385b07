//go:build linux

package ublk

import (
	"errors"
	"os"
)

var errStub = errors.ErrUnsupported

// Ring runs requests.
type Ring struct{}

// NewRing starts a ring.
func NewRing(RingOptions) (*Ring, error) { return nil, errStub }

func (*Ring) Close() error { return errStub }

// Device is an open char device.
type Device struct{}

// OpenDevice opens the char device.
func OpenDevice(DeviceInfo) (*Device, error) { return nil, errStub }

func (*Device) Serve(uint16, *Ring, Target, *Counters) error { return errStub }
func (*Device) Done() <-chan struct{}                        { return nil }
func (*Device) Err() error                                   { return errStub }
func (*Device) Close() error                                 { return errStub }

// ProbeFile looks at a file.
func ProbeFile(*os.File) (FileInfo, error) { return FileInfo{}, errStub }

// File makes a file target.
func File(*os.File, FileOptions) (*FileTarget, error) { return nil, errStub }
