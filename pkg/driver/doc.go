// Package driver holds what the CSI services of both roles share: the gRPC
// server, the identity service, the interceptors, the only map from errors to
// gRPC codes, and the per-volume locks.
//
// It receives services as the generated csi interfaces, so that it imports
// neither its children nor any domain package. Everything below the services
// returns plain Go errors; the interceptor turns them into gRPC statuses.
package driver

// Name is the driver's name: GetPluginInfo, the CSIDriver object, and the
// provisioner of a StorageClass.
const Name = "csi-ublk.io"

// TopologyKey is the key of the one topology segment; its value is the name of
// the Kubernetes node.
const TopologyKey = "topology.csi-ublk.io/node"
