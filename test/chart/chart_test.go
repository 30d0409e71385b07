//go:build helm

package chart

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func TestEverySetOfValuesRenders(t *testing.T) {
	for _, file := range valueFiles(t) {
		for _, version := range kubeVersions {
			t.Run(filepath.Base(file)+" on "+version, func(t *testing.T) {
				if _, err := helm(t, "lint", "--strict", "--kube-version", version, "--values", file, chartDir); err != nil {
					t.Errorf("lint: %v", err)
				}
				objects, err := render(t, version, "--values", file)
				if err != nil {
					t.Fatal(err)
				}
				if len(objects) < 18 {
					t.Errorf("only %d objects", len(objects))
				}
			})
		}
	}
}

func TestUnknownKeysAreRefusedAtEveryLevel(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	// These hold the user's own keys.
	free := []string{"nodeSelector", "podAnnotations", "podLabels", "labels", "requests"}
	tried := 0
	var walk func(path string, m map[string]any)
	walk = func(path string, m map[string]any) {
		tried++
		_, err := render(t, kubeVersions[0], "--set", path+"unknownKey=x")
		if err == nil || !strings.Contains(err.Error(), "unknownKey") {
			t.Errorf("%sunknownKey: error %v", path, err)
		}
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if sub, ok := m[key].(map[string]any); ok && !slices.Contains(free, key) {
				walk(path+key+".", sub)
			}
		}
	}
	walk("", values)
	if tried < 12 {
		t.Errorf("only %d levels", tried)
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		set  []string
		want string
	}{
		"an image pool without size":                 {set: []string{"pools[0].size=null"}, want: "size"},
		"a device pool without device":               {set: []string{"pools[0].kind=device", "pools[0].size=null"}, want: "device"},
		"a path pool without path":                   {set: []string{"pools[0].kind=path"}, want: "path"},
		"a kind of pool that there is not":           {set: []string{"pools[0].kind=lvm"}, want: "kind"},
		"a pool with an unknown key":                 {set: []string{"pools[0].colour=red"}, want: "colour"},
		"no pool":                                    {set: []string{"pools=null"}, want: "pools"},
		"a relative kubelet directory":               {set: []string{"kubeletDir=var/lib/kubelet"}, want: "kubeletDir"},
		"a kubelet directory with a slash behind":    {set: []string{"kubeletDir=/var/lib/kubelet/"}, want: "kubeletDir"},
		"a path pool inside the kubelet directory":   {set: []string{"pools[0].name=x", "pools[0].kind=path", "pools[0].path=/var/lib/kubelet/x", "storageClass.pool=x"}, want: "must be outside"},
		"a class of a pool that there is not":        {set: []string{"storageClass.pool=fast"}, want: "no pool of that name"},
		"snapshots that are neither":                 {set: []string{"snapshots.enabled=maybe"}, want: "enabled"},
		"a look at the limit of volumes each second": {set: []string{"csiDriver.nodeAllocatableUpdatePeriodSeconds=1"}, want: "nodeAllocatableUpdatePeriodSeconds"},
		"templates that are neither on nor off":      {set: []string{"node.templates=maybe"}, want: "templates"},
		"overcommit of less than all":                {set: []string{"pools[0].overcommit=0.5"}, want: "overcommit"},
		"a port beside the probes'":                  {set: []string{"node.extraArgs={--http-address=:1}"}, want: "node.extraArgs: --http-address can't be given here: the probes"},
		"a flag that has a value":                    {set: []string{"server.extraArgs={--max-devices=9,--state-dir,/x}"}, want: "use the value stateDir"},
		"changed blocks without a certificate":       {set: []string{"snapshotMetadata.enabled=true"}, want: "snapshotMetadata.tls.secretName"},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			for _, s := range c.set {
				args = append(args, "--set", s)
			}
			if _, err := render(t, kubeVersions[0], args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// The chart passes flags, the binary defines them: this is where they meet.
func TestTheDriverKnowsItsFlags(t *testing.T) {
	driver := tool(t, "DRIVER")
	for _, file := range valueFiles(t) {
		objects, err := render(t, kubeVersions[1], "--values", file)
		if err != nil {
			t.Fatal(err)
		}
		roles := 0
		for _, object := range objects {
			for _, c := range podSpec(object).Containers {
				if c.Name != "csi-ublk" {
					continue
				}
				roles++
				if out, err := exec.Command(driver, append(slices.Clone(c.Args), "--help")...).CombinedOutput(); err != nil {
					t.Errorf("%s: csi-ublk %v: %v: %s", filepath.Base(file), c.Args, err, out)
				}
			}
		}
		want := 3
		if filepath.Base(file) == "snapshot-metadata-values.yaml" {
			want++
		}
		if roles != want {
			t.Errorf("%s: %d containers of the driver, want %d", filepath.Base(file), roles, want)
		}
	}
}

func TestWhatMustHoldInEveryRelease(t *testing.T) {
	objects, err := render(t, kubeVersions[1])
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, object := range objects {
		switch o := object.(type) {
		case *apiextensionsv1.CustomResourceDefinition:
			seen["crd"] = true
			if o.Annotations["helm.sh/resource-policy"] != "keep" {
				t.Errorf("%s goes with the release, and with it all its objects", o.Name)
			}
		case *storagev1.CSIDriver:
			seen["driver"] = true
			if *o.Spec.AttachRequired || !*o.Spec.StorageCapacity || !*o.Spec.SELinuxMount || *o.Spec.FSGroupPolicy != storagev1.FileFSGroupPolicy {
				t.Errorf("CSIDriver %+v", o.Spec)
			}
			// Inline volumes need both; a volume is published once.
			if !*o.Spec.PodInfoOnMount || *o.Spec.RequiresRepublish || !slices.Equal(o.Spec.VolumeLifecycleModes,
				[]storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}) {
				t.Errorf("CSIDriver %+v", o.Spec)
			}
		case *appsv1.DaemonSet:
			seen[o.Name] = true
			if o.Name == "csi-ublk-server" {
				checkServer(t, o)
			}
		case *appsv1.Deployment:
			seen[o.Name] = true
			for _, c := range o.Spec.Template.Spec.Containers {
				if slices.ContainsFunc(c.Args, func(a string) bool { return strings.Contains(a, "leader-election") }) {
					t.Errorf("%s elects a leader of its own: the driver's lease is the only one", c.Name)
				}
			}
		}
	}
	for _, want := range []string{"crd", "driver", "csi-ublk-server", "csi-ublk-node", "csi-ublk-controller"} {
		if !seen[want] {
			t.Errorf("%s is missing", want)
		}
	}
}

// The limit of volumes is read again where Kubernetes can, and the field is not there
// where it would be dropped with a warning.
func TestLimitOfVolumesIsRefreshed(t *testing.T) {
	for _, c := range []struct {
		version string
		args    []string
		want    int64 // 0 is none
	}{
		{"1.34.0", nil, 0},
		{"1.35.0", nil, 60},
		{"1.37.0", []string{"--set", "csiDriver.nodeAllocatableUpdatePeriodSeconds=600"}, 600},
		{"1.37.0", []string{"--set", "csiDriver.nodeAllocatableUpdatePeriodSeconds=0"}, 0},
	} {
		objects, err := render(t, c.version, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			o, ok := object.(*storagev1.CSIDriver)
			if !ok {
				continue
			}
			var got int64
			if period := o.Spec.NodeAllocatableUpdatePeriodSeconds; period != nil {
				got = *period
			}
			if got != c.want {
				t.Errorf("Kubernetes %s %v: every %d seconds, want %d", c.version, c.args, got, c.want)
			}
		}
	}
}

// On a read-only root the kubelet can't make what it does not find, and a mount of
// what may be missing keeps the pod from starting.
func TestOnAReadOnlyRootNothingIsMadeThere(t *testing.T) {
	objects, err := render(t, kubeVersions[1], "--values", filepath.Join(chartDir, "ci", "readonly-root-values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, object := range objects {
		for _, v := range podSpec(object).Volumes {
			if v.HostPath == nil {
				continue
			}
			seen++
			for _, dir := range []string{"/etc/", "/usr/", "/lib/", "/opt/", "/sys/"} {
				if strings.HasPrefix(v.HostPath.Path+"/", dir) {
					t.Errorf("a pod mounts %s of the node", v.HostPath.Path)
				}
			}
		}
	}
	if seen < 5 {
		t.Errorf("only %d directories of the node", seen)
	}
}

func checkServer(t *testing.T, o *appsv1.DaemonSet) {
	t.Helper()
	spec := o.Spec.Template.Spec
	if o.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Error("an upgrade of the release would replace the servers")
	}
	if !spec.HostPID || spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Error("the server needs the host's process ids and must have no API token")
	}
	for _, v := range spec.Volumes {
		if v.HostPath != nil && strings.HasPrefix("/var/lib/kubelet/", v.HostPath.Path+"/") {
			t.Errorf("the server sees %s, where its volumes are mounted", v.HostPath.Path)
		}
	}
	for _, c := range spec.Containers {
		for _, m := range c.VolumeMounts {
			if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
				t.Errorf("the server's mounts at %s reach the node", m.MountPath)
			}
		}
	}
}

// podSpec returns the pod that an object makes, or an empty one.
func podSpec(object any) corev1.PodSpec {
	switch o := object.(type) {
	case *appsv1.DaemonSet:
		return o.Spec.Template.Spec
	case *appsv1.Deployment:
		return o.Spec.Template.Spec
	}
	return corev1.PodSpec{}
}

func TestDeployIsCurrent(t *testing.T) {
	want, err := helm(t, "template", "csi-ublk", chartDir, "--namespace", "csi-ublk", "--kube-version", kubeVersions[0])
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../deploy/csi-ublk.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("deploy/csi-ublk.yaml is not what the chart renders: run make deploy-manifests")
	}
}
