// Package kernel tests the csi-ublk binary against a real ublk driver, from
// outside: the server and its workers as processes, their disks used by fio and
// file systems, and both ends killed under load.
//
// The tests need root and a driver (build tag ublk), and the binary by the name
// csi-ublk: $CSI_UBLK_BIN, beside the test binary, or in PATH. A machine that
// lacks something fails them.
package kernel
