//go:build !linux

package ublk

import (
	"context"
	"errors"
	"os"
	"time"
)

var errStub = errors.ErrUnsupported

// Control issues the driver's control commands.
type Control struct{}

// OpenControl opens the driver.
func OpenControl(ControlOptions) (*Control, error) { return nil, opError("open", -1, errStub) }

func (*Control) Close() error       { return errStub }
func (*Control) Features() Features { return 0 }
func (*Control) Add(context.Context, DeviceOptions) (DeviceInfo, error) {
	return DeviceInfo{}, errStub
}
func (*Control) SetParams(context.Context, uint32, Params) error { return errStub }
func (*Control) Params(context.Context, uint32) (Params, error)  { return Params{}, errStub }
func (*Control) Info(context.Context, uint32) (DeviceInfo, error) {
	return DeviceInfo{}, errStub
}
func (*Control) Start(context.Context, uint32, int) error             { return errStub }
func (*Control) Stop(context.Context, uint32) error                   { return errStub }
func (*Control) TryStop(context.Context, uint32) error                { return errStub }
func (*Control) Delete(context.Context, uint32) error                 { return errStub }
func (*Control) DeleteAsync(context.Context, uint32) error            { return errStub }
func (*Control) StartRecovery(context.Context, uint32) error          { return errStub }
func (*Control) EndRecovery(context.Context, uint32, int) error       { return errStub }
func (*Control) UpdateSize(context.Context, uint32, uint64) error     { return errStub }
func (*Control) Quiesce(context.Context, uint32, time.Duration) error { return errStub }
func (*Control) Released(context.Context, uint32) (bool, error)       { return false, errStub }
func (*Control) ProbeDeleteKind(context.Context) (DeleteKind, error)  { return DeleteUnknown, errStub }

// Devices lists the devices of the kernel.
func Devices() ([]uint32, error) { return nil, errStub }

func Listed(uint32) (bool, error) { return false, errStub }

func Incarnation(uint32) (uint64, error) { return 0, errStub }

// Ring runs requests.
type Ring struct{}

// NewRing starts a ring.
func NewRing(RingOptions) (*Ring, error) { return nil, errStub }

func (*Ring) Close() error { return errStub }
func (*Ring) Err() error   { return errStub }

// Device is an open char device.
type Device struct{}

// OpenDevice opens the char device.
func OpenDevice(DeviceInfo) (*Device, error) { return nil, errStub }

func (*Device) Serve(uint16, *Ring, Target, *Counters) error { return errStub }
func (*Device) Hold(context.Context, time.Duration) error    { return errStub }
func (*Device) Resume() error                                { return errStub }
func (*Device) SetLimits(Limits)                             {}
func (*Device) Done() <-chan struct{}                        { return nil }
func (*Device) Info() DeviceInfo                             { return DeviceInfo{} }
func (*Device) Err() error                                   { return errStub }
func (*Device) Close() error                                 { return errStub }

// ProbeFile looks at a file.
func (FileInfo) Of(*os.File) (FileInfo, error) { return FileInfo{}, errStub }

func ProbeFile(*os.File) (FileInfo, error) { return FileInfo{}, errStub }

// File makes a file target.
func File(*os.File, FileOptions) (*FileTarget, error) { return nil, errStub }
