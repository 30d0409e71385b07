package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/test/vm/cluster"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// Sizes of the story.
const (
	claimBytes = 1 << 30
	// kept is what a file system may keep for itself once it was written to.
	kept = 16 << 20
)

// play is the story.
func play(ctx context.Context, h *host.Host, s *screen, repo string) error {
	p := &player{screen: s}
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return p.install(ctx, h, repo) },
		p.claim, p.write, p.look, p.stop, p.read, p.remove,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// player carries what later steps need from earlier ones.
type player struct {
	*screen
	free   map[string]int64 // free bytes of the pool by node, before
	node   int
	volume string
	device string // ublkbN
	sum    string
}

func (p *player) install(ctx context.Context, h *host.Host, repo string) error {
	p.chapter("The driver is installed with its Helm chart")
	fmt.Fprintf(p.out, "   $ helm upgrade --install %s charts/csi-ublk --namespace %s --create-namespace --wait\n", cluster.Release, cluster.Release)
	if err := p.cluster.Inside.InstallChart(ctx, h, repo, cluster.ChartOptions{HideNotes: true}, &indented{p.screen}); err != nil {
		return err
	}
	if _, err := p.kubectl(ctx, "get pods -n "+cluster.Release+" -o wide"); err != nil {
		return err
	}
	p.say("Every node reports what it offers: its pools, its kernel, and how that deletes devices.")
	err := p.until(ctx, 3*time.Minute, func(ctx context.Context) (err error) { p.free, err = p.freeBytes(ctx); return err })
	if err != nil {
		return err
	}
	_, err = p.kubectl(ctx, "get ublknodes")
	return err
}

func (p *player) claim(ctx context.Context) error {
	p.chapter("A claim of 1 GiB waits for a pod: its StorageClass binds on first use")
	if _, err := p.kubectl(ctx, "get storageclass csi-ublk"); err != nil {
		return err
	}
	if err := p.apply(ctx, "PersistentVolumeClaim", "demo"); err != nil {
		return err
	}
	var reason string
	err := p.until(ctx, 2*time.Minute, func(ctx context.Context) (err error) {
		reason, err = p.quietly(ctx, nil, "get events --field-selector involvedObject.name=demo -o jsonpath={.items[*].reason}")
		if err == nil && !strings.Contains(reason, "WaitForFirstConsumer") {
			err = fmt.Errorf("events of the claim: %q, want WaitForFirstConsumer", reason)
		}
		return err
	})
	if err != nil {
		return err
	}
	out, err := p.kubectl(ctx, "get pvc demo")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "Pending") {
		return errors.New("the claim is not Pending")
	}
	p.say("Pending, reason WaitForFirstConsumer; no volume was made yet:")
	out, err = p.kubectl(ctx, "get ublkvolumes")
	if err == nil && !strings.Contains(out, "No resources found") {
		err = errors.New("there is a volume already")
	}
	return err
}

func (p *player) write(ctx context.Context) error {
	p.chapter("A pod uses the claim: it writes 64 MiB of random bytes and their checksum")
	if err := p.apply(ctx, "Pod", "writer"); err != nil {
		return err
	}
	start := time.Now()
	if _, err := p.kubectl(ctx, "wait --for=condition=Ready pod/writer --timeout=300s"); err != nil {
		return err
	}
	p.say("(%s from the pod's creation to its bytes being on the volume)", time.Since(start).Round(100*time.Millisecond))
	out, err := p.kubectl(ctx, "logs writer")
	if err != nil {
		return err
	}
	if p.sum, _, _ = strings.Cut(strings.TrimSpace(out), " "); len(p.sum) != 64 {
		return fmt.Errorf("the writer's log has no checksum: %q", out)
	}
	if _, err := p.kubectl(ctx, "exec writer -- df -h /data"); err != nil {
		return err
	}
	if _, err := p.kubectl(ctx, "get pvc,pv"); err != nil {
		return err
	}
	if _, err := p.kubectl(ctx, "get ublkvolumes,ublknodes"); err != nil {
		return err
	}
	return p.place(ctx)
}

// place finds out where the volume is.
func (p *player) place(ctx context.Context) error {
	volume, err := p.quietly(ctx, nil, "get pvc demo -o jsonpath={.spec.volumeName}")
	if err != nil {
		return err
	}
	var pv struct {
		Spec struct {
			CSI struct{ VolumeHandle string }
		}
	}
	text, err := p.quietly(ctx, nil, "get pv "+volume+" -o json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), &pv); err != nil {
		return fmt.Errorf("decode pv %s: %w", volume, err)
	}
	p.volume = pv.Spec.CSI.VolumeHandle
	node, err := p.quietly(ctx, nil, "get pod writer -o jsonpath={.spec.nodeName}")
	if err != nil {
		return err
	}
	if p.node, err = strconv.Atoi(strings.TrimPrefix(node, "node")); err != nil {
		return fmt.Errorf("node of the pod: %q", node)
	}
	return nil
}

func (p *player) look(ctx context.Context) error {
	p.chapter(fmt.Sprintf("On node%d the volume is a ublk block device, served by csi-ublk from a file in the pool", p.node))
	script := `for m in $(awk '$2 ~ "^/var/lib/kubelet/.*csi" && $1 ~ "^/dev/ublkb" {print $1}' /proc/mounts | sort -u); do basename $m; done`
	out, err := p.cluster.Shell(ctx, p.node, script)
	if err != nil {
		return err
	}
	devices := strings.Fields(out)
	if len(devices) != 1 {
		return fmt.Errorf("mounted ublk devices on the node: %q, want one", devices)
	}
	p.device = devices[0]
	for _, script := range []string{
		"ls -l /dev/ublk*",
		"lsblk -o NAME,MAJ:MIN,SIZE,MOUNTPOINTS /dev/" + p.device,
		"grep " + p.device + " /proc/mounts",
		"ls -lsh /var/lib/csi-ublk/pools/default/volumes/",
	} {
		if _, err := p.nodeShell(ctx, script); err != nil {
			return err
		}
	}
	size, err := p.cluster.Shell(ctx, p.node, "blockdev --getsize64 /dev/"+p.device)
	if err != nil {
		return err
	}
	if strings.TrimSpace(size) != strconv.Itoa(claimBytes) {
		return fmt.Errorf("the device has %s bytes, want %d", strings.TrimSpace(size), claimBytes)
	}
	p.say("The device has exactly the claim's %d bytes; the file takes only what was written.", claimBytes)
	return nil
}

func (p *player) nodeShell(ctx context.Context, script string) (string, error) {
	return p.screen.node(ctx, p.node, script)
}

func (p *player) stop(ctx context.Context) error {
	p.chapter("The pod is deleted: the device goes, the bytes stay in their file")
	if _, err := p.kubectl(ctx, "delete pod writer"); err != nil {
		return err
	}
	if err := p.deviceGone(ctx); err != nil {
		return err
	}
	out, err := p.nodeShell(ctx, "ls /dev/ublkb* 2>&1; ls -lsh /var/lib/csi-ublk/pools/default/volumes/")
	if err == nil && !strings.Contains(out, p.volume) {
		err = fmt.Errorf("the pool has no file %s any more", p.volume)
	}
	return err
}

// deviceGone waits until the node has neither device nor mount of the volume.
func (p *player) deviceGone(ctx context.Context) error {
	script := fmt.Sprintf("ls -d /sys/block/%[1]s /sys/class/ublk-char/%[2]s 2>/dev/null; grep -e '/dev/%[1]s ' -e '/%[3]s/' /proc/mounts; true",
		p.device, strings.Replace(p.device, "ublkb", "ublkc", 1), p.volume)
	return p.until(ctx, 5*time.Minute, func(ctx context.Context) error {
		out, err := p.cluster.Shell(ctx, p.node, script)
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("device or mount is still there: %s", strings.TrimSpace(out))
		}
		return err
	})
}

func (p *player) read(ctx context.Context) error {
	p.chapter("A second pod uses the same claim and reads the bytes back")
	if err := p.apply(ctx, "Pod", "reader"); err != nil {
		return err
	}
	if _, err := p.kubectl(ctx, "wait --for=jsonpath={.status.phase}=Succeeded pod/reader --timeout=300s"); err != nil {
		return err
	}
	out, err := p.kubectl(ctx, "logs reader")
	if err != nil {
		return err
	}
	if !strings.Contains(out, p.sum) || !strings.Contains(out, "bytes: OK") {
		return fmt.Errorf("the reader did not find the writer's bytes (checksum %s)", p.sum)
	}
	p.say("The checksum that was computed from what the second pod read is the first pod's.")
	return nil
}

func (p *player) remove(ctx context.Context) error {
	p.chapter("Pod and claim are deleted: nothing is left, and the pool has its bytes back")
	if _, err := p.kubectl(ctx, "delete pod/reader pvc/demo"); err != nil {
		return err
	}
	err := p.until(ctx, 5*time.Minute, func(ctx context.Context) error {
		out, err := p.quietly(ctx, nil, "get pv,ublkvolumes -o name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("still there: %s", strings.Fields(out))
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := p.deviceGone(ctx); err != nil {
		return err
	}
	err = p.until(ctx, 5*time.Minute, func(ctx context.Context) error {
		now, err := p.freeBytes(ctx)
		for node, before := range p.free {
			if err == nil && now[node] < before-kept {
				err = fmt.Errorf("pool of %s has %d bytes free, before the claim %d", node, now[node], before)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := p.kubectl(ctx, "get pv,ublkvolumes"); err != nil {
		return err
	}
	out, err := p.nodeShell(ctx, "ls /dev/ublkb* 2>&1; ls -A /var/lib/csi-ublk/pools/default/volumes /var/lib/csi-ublk/pools/default/trash")
	if err != nil {
		return err
	}
	if strings.Contains(out, p.volume) {
		return fmt.Errorf("the pool still has the file of %s", p.volume)
	}
	_, err = p.kubectl(ctx, "get ublknodes")
	return err
}

// apply creates one object of the story.
func (p *player) apply(ctx context.Context, kind, name string) error {
	doc, err := document(kind, name)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "   $ kubectl apply -f - <<EOF\n")
	p.show(doc)
	fmt.Fprintf(p.out, "   EOF\n")
	out, err := p.quietly(ctx, strings.NewReader(doc), "apply -f -")
	p.show(out)
	return err
}

// document finds an object in the story's manifests.
func document(kind, name string) (string, error) {
	for _, doc := range strings.Split(story, "---\n") {
		if strings.Contains(doc, "kind: "+kind+"\n") && strings.Contains(doc, "\n  name: "+name+"\n") {
			return doc, nil
		}
	}
	return "", fmt.Errorf("the story has no %s %s", kind, name)
}

// freeBytes is the free space of the default pool by node; an error if one is not ready, or has space on its way back.
func (p *player) freeBytes(ctx context.Context) (map[string]int64, error) {
	text, err := p.quietly(ctx, nil, "get ublknodes -o json")
	if err != nil {
		return nil, err
	}
	var list v1alpha1.UblkNodeList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("decode the ublknodes: %w", err)
	}
	free := map[string]int64{}
	for _, n := range list.Items {
		for _, pool := range n.Status.Pools {
			if pool.Name == "default" && pool.Ready && pool.ReclaimingBytes == 0 {
				free[n.Name] = pool.FreeBytes
			}
		}
	}
	if len(free) != len(p.cluster.Nodes) {
		return nil, fmt.Errorf("%d of %d nodes have a ready pool with nothing to reclaim", len(free), len(p.cluster.Nodes))
	}
	return free, nil
}

// indented shows the output of a program that this one runs.
type indented struct{ s *screen }

func (i *indented) Write(b []byte) (int, error) {
	i.s.show(string(b))
	return len(b), nil
}
