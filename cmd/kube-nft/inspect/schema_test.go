package inspect

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
		"Status":            Status{},
		"FrontendList":      output.List[serviceRow]{},
		"EndpointList":      output.List[endpointRow]{},
		"AffinityEntryList": output.List[affinityRow]{},
		"Explanation":       answer{},
		"TracedPacket":      TracedPacket{},
		"Top":               Top{},
		"Facts":             Facts{},
		"EndedConnection":   EndedConnection{},
		"LostConnections":   LostConnections{},
	} {
		schema.Check(t, *updateSchemas, kind, document)
	}
}
