// Package apiserver holds the tests of the controller role against a real
// kube-apiserver and etcd: the binary runs as it does in a pod, the tests speak
// CSI to its socket and look at the objects. Only the nodes are stand-ins, which
// answer on the objects as the node plugin does.
//
// The programs come from TEST_ASSET_KUBE_APISERVER and TEST_ASSET_ETCD, or from
// the directory KUBEBUILDER_ASSETS. Without them the tests fail.
//
//	go test -tags kube ./test/apiserver
package apiserver
