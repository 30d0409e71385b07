package examples

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestEveryExampleIsShown: a manifest that no document leads to is found by nobody.
func TestEveryExampleIsShown(t *testing.T) {
	var text strings.Builder
	documents, err := filepath.Glob("../*.md")
	if err != nil || len(documents) == 0 {
		t.Fatalf("documents %v, %v", documents, err)
	}
	for _, name := range documents {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(content)
	}
	files, err := Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.Contains(text.String(), "(examples/"+f.Name()+")") {
			t.Errorf("no document in docs/ has a link to examples/%s", f.Name())
		}
	}
}

// A field that the API does not have would be dropped without a word by kubectl apply
// --validate=false, and by older clusters. The snapshot API is left to the cluster tests.
func TestExamplesHaveNoUnknownFields(t *testing.T) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	files, err := Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, f := range files {
		text, err := Files.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range bytes.Split(text, []byte("\n---\n")) {
			_, _, err := decoder.Decode(doc, nil, nil)
			if runtime.IsNotRegisteredError(err) && bytes.Contains(doc, []byte("snapshot.storage.k8s.io/v1")) {
				continue
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", f.Name(), err, doc)
			}
			tried++
		}
	}
	if tried < 15 {
		t.Errorf("only %d objects", tried)
	}
}
