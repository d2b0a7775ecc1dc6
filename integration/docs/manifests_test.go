package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// manifests matches a block of YAML that begins as a Kubernetes object does.
var manifests = regexp.MustCompile("(?ms)^```yaml\n(apiVersion: .*?)^```")

// TestManifests reads the objects of the pages as the API server does: a kind or a field that does not exist fails.
func TestManifests(t *testing.T) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	read := 0
	for _, page := range append(glob(t, "docs/*.md"), glob(t, "*.md")...) {
		for _, block := range manifests.FindAllStringSubmatch(readPage(t, page), -1) {
			for _, document := range strings.Split(block[1], "\n---\n") {
				read++
				if _, kind, err := decoder.Decode([]byte(document), nil, nil); err != nil {
					t.Errorf("%s: %v: %v", filepath.Base(page), kind, err)
				}
			}
		}
	}
	if read < 3 {
		t.Errorf("read %d objects, which are too few to be all", read)
	}
}
