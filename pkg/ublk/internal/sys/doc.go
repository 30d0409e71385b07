// Package sys mirrors the ABI of the ublk driver (include/uapi/linux/ublk_cmd.h):
// opcodes and structures, with proofs of their layout. It knows no policy.
//
// Opcodes are always the ioctl-encoded ones. The plain numbers of old drivers
// depend on a kernel option that distributions turn off.
package sys
