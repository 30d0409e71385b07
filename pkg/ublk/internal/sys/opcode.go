package sys

import "unsafe"

// Op is a command as io_uring's cmd_op carries it: an ioctl number that also
// encodes the size of the command's structure.
type Op uint32

// The parts of an ioctl number, as include/uapi/asm-generic/ioctl.h lays them
// out. Alpha, MIPS, PowerPC and SPARC differ; this package does not serve them.
const (
	iocWrite     = 1
	iocRead      = 2
	iocSizeShift = 16
	iocDirShift  = 30
	iocType      = 'u' << 8

	ctrlSize = unsafe.Sizeof(CtrlCmd{}) << iocSizeShift
	ioSize   = unsafe.Sizeof(IOCmd{}) << iocSizeShift

	ctrlR  = iocRead<<iocDirShift | ctrlSize | iocType
	ctrlRW = (iocRead|iocWrite)<<iocDirShift | ctrlSize | iocType
	ioRW   = (iocRead|iocWrite)<<iocDirShift | ioSize | iocType
)

// Control commands, sent to /dev/ublk-control in 128-byte entries.
const (
	GetQueueAffinity Op = Op(ctrlR | 0x01)
	GetDevInfo       Op = Op(ctrlR | 0x02)
	AddDev           Op = Op(ctrlRW | 0x04)
	DelDev           Op = Op(ctrlRW | 0x05)
	StartDev         Op = Op(ctrlRW | 0x06)
	StopDev          Op = Op(ctrlRW | 0x07)
	SetParams        Op = Op(ctrlRW | 0x08)
	GetParams        Op = Op(ctrlR | 0x09)
	StartRecovery    Op = Op(ctrlRW | 0x10)
	EndRecovery      Op = Op(ctrlRW | 0x11)
	GetDevInfo2      Op = Op(ctrlR | 0x12)
	GetFeatures      Op = Op(ctrlR | 0x13)
	DelDevAsync      Op = Op(ctrlR | 0x14)
	UpdateSize       Op = Op(ctrlRW | 0x15)
	QuiesceDev       Op = Op(ctrlRW | 0x16)
	TryStopDev       Op = Op(ctrlRW | 0x17)
)

// Commands of a queue, sent to /dev/ublkcN.
const (
	FetchReq       Op = Op(ioRW | 0x20)
	CommitAndFetch Op = Op(ioRW | 0x21)
)

// String is the kernel's name without its prefix, for error texts.
func (o Op) String() string {
	switch o {
	case GetQueueAffinity:
		return "GET_QUEUE_AFFINITY"
	case GetDevInfo:
		return "GET_DEV_INFO"
	case AddDev:
		return "ADD_DEV"
	case DelDev:
		return "DEL_DEV"
	case StartDev:
		return "START_DEV"
	case StopDev:
		return "STOP_DEV"
	case SetParams:
		return "SET_PARAMS"
	case GetParams:
		return "GET_PARAMS"
	case StartRecovery:
		return "START_USER_RECOVERY"
	case EndRecovery:
		return "END_USER_RECOVERY"
	case GetDevInfo2:
		return "GET_DEV_INFO2"
	case GetFeatures:
		return "GET_FEATURES"
	case DelDevAsync:
		return "DEL_DEV_ASYNC"
	case UpdateSize:
		return "UPDATE_SIZE"
	case QuiesceDev:
		return "QUIESCE_DEV"
	case TryStopDev:
		return "TRY_STOP_DEV"
	case FetchReq:
		return "FETCH_REQ"
	case CommitAndFetch:
		return "COMMIT_AND_FETCH_REQ"
	}
	return "unknown command"
}
