package cluster

import (
	"flag"
	"testing"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/integration/schema"
)

var updateSchemas = flag.Bool("update", false, "rewrite docs/schema")

// TestSchemas holds the published schemas to the documents.
func TestSchemas(t *testing.T) {
	for kind, document := range map[string]any{
		"NodeStatusList":   output.List[nodeStatus]{},
		"NodeStatus":       watchedStatus{},
		"NodeDiffList":     output.List[nodeDiff]{},
		"NodeAnswerList":   output.List[answer]{},
		"NodeDocumentList": output.List[nodeDocument]{},
	} {
		schema.Check(t, *updateSchemas, kind, document)
	}
}
