//go:build helm

package chart

import (
	"encoding/base64"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// metadataValues turn the snapshot metadata service on.
var metadataValues = filepath.Join(chartDir, "ci", "snapshot-metadata-values.yaml")

// Changed blocks cost nothing where they are off: no port, no right, no pod.
func TestSnapshotMetadataIsOff(t *testing.T) {
	text, err := helm(t, "template", "csi-ublk", chartDir, "--kube-version", kubeVersions[0], "--api-versions", "cbt.storage.k8s.io/v1beta1")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"tokenreviews", "snapshot-metadata", "csi-ublk-metadata", "cbt.storage.k8s.io", "9812"} {
		if strings.Contains(text, word) {
			t.Errorf("%s is in a release without changed blocks", word)
		}
	}
}

func TestSnapshotMetadata(t *testing.T) {
	for name, served := range map[string]bool{"without the CRD": false, "with the CRD": true} {
		t.Run(name, func(t *testing.T) {
			args := []string{"template", "csi-ublk", chartDir, "--namespace", "storage", "--kube-version", kubeVersions[0], "--values", metadataValues}
			if served {
				args = append(args, "--api-versions", "cbt.storage.k8s.io/v1beta1")
			}
			text, err := helm(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(text, "kind: SnapshotMetadataService") != served {
				t.Errorf("SnapshotMetadataService, and the CRD is served: %v", served)
			}
			ca := base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n"))
			for _, line := range []string{"address: csi-ublk-metadata.storage:443", "audience: backups.example.com", "caCert: " + ca} {
				if strings.Contains(text, line) != served {
					t.Errorf("%q, and the CRD is served: %v", line, served)
				}
			}
			checkMetadataPods(t, text)
		})
	}
}

// checkMetadataPods looks for what one pod says and another relies on.
func checkMetadataPods(t *testing.T, text string) {
	t.Helper()
	seen := 0
	for _, o := range decode(t, text) {
		spec := podSpec(o)
		has := func(container, arg string) bool {
			return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == container && slices.Contains(c.Args, arg) })
		}
		switch o := o.(type) {
		case *corev1.Service:
			seen++
			if o.Spec.Ports[0].Port != 443 || o.Spec.Ports[0].TargetPort.StrVal != "metadata" {
				t.Errorf("service %+v", o.Spec)
			}
		case *appsv1.DaemonSet:
			if o.Name == "csi-ublk-node" {
				seen++
				if !has("csi-ublk", "--snapshot-metadata-client=system:serviceaccount:storage:csi-ublk-metadata") || !has("csi-ublk", "--snapshot-metadata-address=:9812") {
					t.Errorf("node plugin %v", spec.Containers[0].Args)
				}
			}
		case *appsv1.Deployment:
			if o.Name == "csi-ublk-controller" {
				seen++
				if !has("csi-ublk", "--snapshot-metadata") {
					t.Error("the controller does not name the capability, the metadata role does")
				}
				continue
			}
			seen++
			if spec.ServiceAccountName != "csi-ublk-metadata" || !has("csi-snapshot-metadata", "--audience=backups.example.com") {
				t.Errorf("metadata pod %+v", spec)
			}
			if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
				return v.Projected != nil && v.Projected.Sources[0].ServiceAccountToken.Audience == "csi-ublk.io/node"
			}) {
				t.Error("the metadata pod has no token for nodes")
			}
		}
	}
	if seen != 4 {
		t.Errorf("%d of 4 objects seen", seen)
	}
}
