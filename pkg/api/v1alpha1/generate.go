package v1alpha1

//go:generate go tool controller-gen object paths=.
//go:generate go tool controller-gen crd paths=. output:crd:dir=../../../charts/csi-ublk/files/crds
