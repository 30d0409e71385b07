package main

import (
	"fmt"
	"slices"
	"strings"
)

// arrow says what a part of the tree must not reach, through any chain of
// packages of this module. Paths are directories of the module or import paths,
// and mean everything below them too.
type arrow struct {
	from   []string
	except []string // parts of from that are free
	never  []string
	allow  []string // parts of never that are allowed
	why    string
}

var (
	kubernetes = []string{"k8s.io", "sigs.k8s.io"}
	rpc        = []string{"google.golang.org/grpc", "github.com/container-storage-interface/spec"}
)

// arrows are the rules of ARCHITECTURE.md: imports point down only.
var arrows = []arrow{
	{
		from:  []string{"pkg/ublk"},
		never: append(slices.Concat(kubernetes, rpc), "log", "log/slog", "github.com", "go.uber.org"),
		why:   "pkg/ublk is a library over the kernel: standard library and golang.org/x/sys only",
	}, {
		from: []string{"pkg/ublk"}, never: []string{"pkg"}, allow: []string{"pkg/ublk"},
		why: "pkg/ublk is the bottom",
	}, {
		from: []string{"pkg/pool"}, never: append(slices.Concat(kubernetes, rpc), "pkg"), allow: []string{"pkg/pool"},
		why: "pools know the disk, not who asks",
	}, {
		from: []string{"pkg/capacity"}, never: append(slices.Clone(rpc), "k8s.io/client-go", "sigs.k8s.io/controller-runtime", "os", "net"),
		why: "the ledger is pure",
	}, {
		from: []string{"pkg/api"}, never: append(slices.Clone(rpc), "pkg"), allow: []string{"pkg/api"},
		why: "API objects know no callers",
	}, {
		from: []string{"pkg/server"}, never: append(slices.Clone(kubernetes), "pkg/driver", "pkg/reconciler", "pkg/capacity", "pkg/api"),
		why: "the device server goes on when Kubernetes does not",
	}, {
		from: []string{"pkg/server/client", "pkg/server/api"}, never: []string{"pkg/ublk", "pkg/server"}, allow: []string{"pkg/server/client", "pkg/server/api"},
		why: "a client of the server must not bring the server along",
	}, {
		from: []string{"pkg/driver", "pkg/reconciler"}, never: []string{"pkg/ublk", "pkg/server"}, allow: []string{"pkg/server/client", "pkg/server/api"},
		why: "only the device server touches ublk; others talk to its API",
	}, {
		from: []string{"pkg/driver"}, except: []string{"pkg/driver/controller", "pkg/driver/node"}, never: []string{"pkg/driver/controller", "pkg/driver/node", "pkg/reconciler"},
		why: "the driver is given its services, it does not know them",
	}, {
		from: []string{"pkg/driver/controller", "pkg/reconciler/orphan"}, never: []string{"pkg/pool", "pkg/server", "pkg/driver/node", "pkg/driver/mount"},
		why: "the controller touches no node",
	}, {
		from: []string{"pkg/driver/metadata"}, never: []string{"pkg/pool", "pkg/server", "pkg/driver/mount"},
		why: "the way to a node's snapshots knows neither disk nor device",
	}, {
		from: []string{"pkg/bench"}, never: []string{"pkg/server", "pkg/reconciler", "pkg/driver/controller", "pkg/capacity", "pkg/api", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"},
		allow: []string{"pkg/server/client", "pkg/server/api"},
		why:   "a bench measures a node, without a cluster, and the device server as a process of its own",
	}, {
		from: []string{"pkg"}, except: []string{"pkg/bench"}, never: []string{"pkg/bench"},
		why: "what is measured does not know who measures",
	}, {
		from: []string{"pkg", "internal", "test"}, never: []string{"cmd"},
		why: "cmd wires everything and nobody imports it",
	}, {
		from: []string{"pkg", "cmd"}, never: []string{"test"},
		why: "the product needs no test code",
	},
}

// checkArrows returns a finding for every arrow that a package breaks, with the
// chain of imports that does.
func checkArrows(t *tree, arrows []arrow) []string {
	edges := t.edges()
	var findings []string
	for dir := range edges {
		for _, a := range arrows {
			if !below(dir, a.from) || below(dir, a.except) {
				continue
			}
			if chain := reach(edges, dir, a); chain != nil {
				findings = append(findings, fmt.Sprintf("%s: imports %s: %s", dir, strings.Join(chain, " -> "), a.why))
			}
		}
	}
	return findings
}

// reach returns the shortest chain of imports from dir to what the arrow forbids,
// without dir itself, or nil.
func reach(edges map[string][]string, dir string, a arrow) []string {
	seen := map[string]bool{dir: true}
	queue := [][]string{{dir}}
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		for _, next := range edges[chain[len(chain)-1]] {
			if seen[next] {
				continue
			}
			seen[next] = true
			longer := append(slices.Clone(chain), next)
			if below(next, a.never) && !below(next, a.allow) {
				return longer[1:]
			}
			// What an allowed package imports is its own arrows' business.
			if !below(next, a.allow) || below(next, a.from) {
				queue = append(queue, longer)
			}
		}
	}
	return nil
}

func below(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return path == root || strings.HasPrefix(path, root+"/")
	})
}
