// Package sanity runs the community's csi-sanity against the driver as the chart
// installs it: controller, node and device server in pods on a node with a real
// ublk driver. Nothing is mocked but the kubelet's calls, which csi-sanity makes.
//
// The tests carry the build tag sanity and run on that node as root, with
// csi-sanity in PATH. SANITY_CONTROLLER and SANITY_NODE are the sockets of the two
// CSI services; test/sanity/run finds them, in a cluster of the rig's own.
package sanity
