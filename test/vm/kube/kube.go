// Package kube builds the programs of a Kubernetes cluster from Go modules: no download of binaries, no registry. Every folder
// below this one is a module of its own whose go.mod names the versions; nothing else does.
package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// Set is a folder with a go.mod, and the programs that are built from it.
type Set struct {
	// Name is the folder's name.
	Name string
	// Module is the module whose version stands for the set's, for the programs that carry no version of their own.
	Module string
	// Programs maps the names of the programs to their packages.
	Programs map[string]string
	// Usual is how long the first build takes on two cores.
	Usual time.Duration
}

// The sets of a cluster.
var (
	Kubernetes = Set{Name: "kubernetes", Module: "k8s.io/kubernetes", Usual: 8 * time.Minute, Programs: map[string]string{
		"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
		"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
		"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
		"kube-proxy":              "k8s.io/kubernetes/cmd/kube-proxy",
		"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
		"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
		"csi-provisioner":         "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
		"csi-resizer":             "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
		"csi-snapshotter":         "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
		"snapshot-controller":     "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
	}}
	Etcd = Set{Name: "etcd", Module: "go.etcd.io/etcd/server/v3", Usual: 30 * time.Second, Programs: map[string]string{
		"etcd": "go.etcd.io/etcd/server/v3",
	}}
	Containerd = Set{Name: "containerd", Module: "github.com/containerd/containerd/v2", Usual: time.Minute, Programs: map[string]string{
		"containerd":              "github.com/containerd/containerd/v2/cmd/containerd",
		"containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
		"ctr":                     "github.com/containerd/containerd/v2/cmd/ctr",
	}}
	CNI = Set{Name: "cni", Module: "github.com/containernetworking/plugins", Usual: 10 * time.Second, Programs: map[string]string{
		"bridge":     "github.com/containernetworking/plugins/plugins/main/bridge",
		"host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
		"loopback":   "github.com/containernetworking/plugins/plugins/main/loopback",
		"portmap":    "github.com/containernetworking/plugins/plugins/meta/portmap",
	}}
	Helm = Set{Name: "helm", Module: "helm.sh/helm/v4", Usual: 100 * time.Second, Programs: map[string]string{
		"helm": "helm.sh/helm/v4/cmd/helm",
	}}
	Sanity = Set{Name: "sanity", Module: "github.com/kubernetes-csi/csi-test/v5", Usual: 20 * time.Second, Programs: map[string]string{
		"csi-sanity": "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity",
	}}
	// Kubeadm is not a part of Kubernetes, so that only who makes nodes for kind builds it. Its version must be the same.
	Kubeadm = Set{Name: "kubeadm", Module: "k8s.io/kubernetes", Usual: time.Minute, Programs: map[string]string{
		"kubeadm": "k8s.io/kubernetes/cmd/kubeadm",
	}}
	// Kind is also where the files of a kind node come from: its module has those of its base image.
	Kind = Set{Name: "kind", Module: "sigs.k8s.io/kind", Usual: 10 * time.Second, Programs: map[string]string{
		"kind": "sigs.k8s.io/kind",
	}}
	// Sets lists them all.
	Sets = []Set{Etcd, CNI, Containerd, Kubernetes, Helm, Sanity, Kubeadm, Kind}
)

// Built is a set that is built.
type Built struct {
	Set Set
	// Dir holds the programs.
	Dir string
	// Version is that of the set's module, such as v1.37.2.
	Version string
	// Key stands for the programs' content.
	Key string
	// Versions has the version of every program's module.
	Versions map[string]string
}

// Path returns a program's path.
func (b Built) Path(program string) string { return filepath.Join(b.Dir, program) }

// Build returns the set's programs, statically linked, and builds them first if the cache lacks them (minutes; shown as
// progress). repo is the directory of this repository.
func Build(ctx context.Context, h *host.Host, repo string, s Set) (Built, error) {
	src := filepath.Join(repo, "test", "vm", "kube", s.Name)
	key, err := s.key(ctx, src)
	if err != nil {
		return Built{}, fmt.Errorf("build %s: %w", s.Name, err)
	}
	dir, err := h.Entry(ctx, "kube", s.Name+"-"+key, func(ctx context.Context, dir string) error {
		return h.Step("building "+s.describe()+" from source", s.Usual, func() error { return s.build(ctx, src, dir) })
	})
	if err != nil {
		return Built{}, err
	}
	b := Built{Set: s, Dir: dir, Key: key}
	text, err := os.ReadFile(filepath.Join(dir, versionsFile))
	if err != nil {
		return Built{}, fmt.Errorf("read versions of %s: %w", s.Name, err)
	}
	if err := json.Unmarshal(text, &b.Versions); err != nil {
		return Built{}, fmt.Errorf("decode versions of %s: %w", s.Name, err)
	}
	b.Version = b.Versions[s.Module]
	return b, nil
}

// versionsFile lies beside the programs: versions by program name, and that of the set's module by its path.
const versionsFile = "versions.json"

func (s Set) names() []string {
	var names []string
	for n := range s.Programs {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// describe names the set and, where its programs say more than its name, some of them.
func (s Set) describe() string {
	if len(s.Programs) < 2 {
		return s.Name
	}
	return fmt.Sprintf("%s (%d programs)", s.Name, len(s.Programs))
}

// key digests everything that the programs' content depends on.
func (s Set) key(ctx context.Context, src string) (string, error) {
	parts := []string{runtime.GOARCH, strings.Join(flags("v0.0.0"), " ")}
	version, err := host.Run(ctx, host.Command{Args: []string{"go", "env", "GOVERSION"}, Dir: src})
	if err != nil {
		return "", err
	}
	parts = append(parts, version)
	for _, f := range []string{"go.mod", "go.sum"} {
		k, err := host.FileKey(filepath.Join(src, f))
		if err != nil {
			return "", err
		}
		parts = append(parts, k)
	}
	for _, n := range s.names() {
		parts = append(parts, n, s.Programs[n])
	}
	return host.Key(parts...), nil
}
