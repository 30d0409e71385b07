package image

import (
	"context"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// Names of the images that the pods of Kubernetes' storage tests run.
const (
	suiteBusybox = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"
	suiteAgnhost = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
	// Of these the tests use nothing but a shell and its commands.
	suiteNginx = "registry.k8s.io/e2e-test-images/nginx:1.27.0-2"
	suiteDNS   = "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.1.1"
)

// External returns stand-ins for the images of Kubernetes' storage tests: a busybox, and one with Kubernetes' own agnhost
// program, whose path is given, for the tools that upstream's has from Alpine. dir receives their layers and must stay as long
// as they are used.
func External(ctx context.Context, h *host.Host, agnhost, dir string) ([]Image, error) {
	shell, err := busyboxLayer(ctx, h, dir)
	if err != nil {
		return nil, err
	}
	program, err := makeLayer(filepath.Join(dir, "agnhost.tar"), []file{{path: "/agnhost", from: agnhost}})
	if err != nil {
		return nil, err
	}
	busybox, err := assemble(v1.Config{Cmd: []string{"sh"}}, []string{suiteBusybox, suiteNginx, suiteDNS}, shell)
	if err != nil {
		return nil, err
	}
	host, err := assemble(v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}, []string{suiteAgnhost}, shell, program)
	return []Image{busybox, host}, err
}
