package move

import (
	"flag"
	"testing"

	"github.com/kube-nft/kube-nft/integration/schema"
)

var updateSchemas = flag.Bool("update", false, "rewrite docs/schema")

// TestSchemas holds the published schemas to the documents.
func TestSchemas(t *testing.T) {
	for kind, document := range map[string]any{
		"MigrationPlan": planDocument{},
	} {
		schema.Check(t, *updateSchemas, kind, document)
	}
}
