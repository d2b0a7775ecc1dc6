package inspect

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
)

// digestOf returns a digest of what must be the same on all nodes: the frontends with their Services. Endpoint lists of
// policy Cluster must be the same on the nodes of one zone, because hints may give a zone endpoints of its own.
func digestOf(frontends []readback.Frontend) (ofFrontends, ofEndpoints string) {
	var names, lists []string
	for i := range frontends {
		f := &frontends[i]
		name := f.Frontend.String() + " " + f.Name.String()
		names = append(names, name)
		policy, ok := layout.PolicyOf(f.Verdict)
		if kind := policy.Open().Kind; ok && (kind == layout.Internal || kind == layout.External) {
			endpoints := slices.Clone(f.Cluster)
			slices.SortFunc(endpoints, netip.AddrPort.Compare)
			lists = append(lists, fmt.Sprint(name, endpoints))
		}
	}
	return digest(names), digest(lists)
}

// digestLen is how many bytes of a hash a digest has.
const digestLen = 8

// digest hashes texts, whatever their order.
func digest(texts []string) string {
	slices.Sort(texts)
	h := sha256.New()
	for _, text := range texts {
		_, _ = io.WriteString(h, text+"\n") // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:digestLen])
}
