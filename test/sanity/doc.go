// Package sanity runs the community's csi-sanity against the driver as it is: the
// controller role on a real API server, the node role, and the device server with
// its workers on a real ublk driver, all in one guest. Nothing is mocked but the
// kubelet, whose part csi-sanity plays.
//
// The tests carry the build tag sanity and need root, a blank disk /dev/data, and
// csi-ublk, csi-sanity, etcd and kube-apiserver in PATH; make test-sanity brings
// all of that.
package sanity
