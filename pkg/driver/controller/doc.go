// Package controller is the CSI controller service.
//
// It writes UblkVolume objects and waits, by watch, for what their nodes make of
// them; it never touches a device or a file. Where a volume goes is decided by
// the ledger of package capacity, which this package feeds from the cache. There
// must be one Service at work in a cluster: see Service.Start.
package controller
