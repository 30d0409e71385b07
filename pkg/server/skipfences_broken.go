//go:build ublk_nofence

package server

// skipFences breaks recovery on purpose; see test/kernel.
const skipFences = true
