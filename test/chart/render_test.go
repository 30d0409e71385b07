//go:build helm

// Package chart tests what the chart renders: with every set of values that it
// ships for tests, by strict decoding into the API's types, and against the
// driver's own flags.
//
//	HELM=/path/to/helm DRIVER=/path/to/csi-ublk go test -tags helm ./test/chart
package chart

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

const chartDir = "../../charts/csi-ublk"

// kubeVersions are the oldest that the chart supports and one that has all that
// it makes use of.
var kubeVersions = []string{"1.34.0", "1.37.0"}

func tool(t *testing.T, name string) string {
	t.Helper()
	path := os.Getenv(name)
	if path == "" {
		t.Fatalf("set %s to the program's path; make test-chart does", name)
	}
	return path
}

// helm runs helm and returns what it prints; env-independent, so that plugins and
// repositories of the user change nothing.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(tool(t, "HELM"), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+home+"/none")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = errors.New(err.Error() + ": " + stderr.String() + stdout.String())
	}
	return stdout.String(), err
}

func render(t *testing.T, kubeVersion string, more ...string) ([]runtime.Object, error) {
	t.Helper()
	text, err := helm(t, append([]string{"template", "csi-ublk", chartDir, "--namespace", "storage", "--kube-version", kubeVersion}, more...)...)
	if err != nil {
		return nil, err
	}
	return decode(t, text), nil
}

// foreign are the groups of other projects' APIs.
var foreign = []string{"monitoring.coreos.com", "snapshot.storage.k8s.io", "cbt.storage.k8s.io"}

// decode refuses fields that the API does not have; objects of other projects'
// APIs are left out.
func decode(t *testing.T, text string) []runtime.Object {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
	var objects []runtime.Object
	docs := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text)))
	defer docs.Close()
	buffer := make([]byte, 1<<20)
	for {
		n, err := docs.Read(buffer)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		doc := buffer[:n]
		if !bytes.Contains(doc, []byte("\nkind:")) && !bytes.HasPrefix(doc, []byte("kind:")) {
			continue
		}
		object, _, err := decoder.Decode(doc, nil, nil)
		if runtime.IsNotRegisteredError(err) && slices.ContainsFunc(foreign, func(group string) bool { return bytes.Contains(doc, []byte(group)) }) {
			continue
		}
		if err != nil {
			t.Fatalf("decode: %v\n%s", err, doc)
		}
		objects = append(objects, object)
	}
}

// valueFiles are the chart's sets of values for tests.
func valueFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*-values.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("values files %q, error %v", files, err)
	}
	return files
}
