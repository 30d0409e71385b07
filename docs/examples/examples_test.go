package examples

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
