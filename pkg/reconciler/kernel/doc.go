// Package kernel is the controller's side of what nodes say of their kernels: it
// carries it over to the Kubernetes nodes, which the node plugins may not write.
//
//   - A node's label csi-ublk.io/delete-kind is its kernel's kind of DEL_DEV, in
//     lower case, so that pods can select on it.
//   - A node whose kernel is wedged gets an event and, if so configured, the taint
//     csi-ublk.io/kernel-wedged:NoSchedule, until its kernel answers again. New
//     volumes keep away from it in any case.
package kernel
