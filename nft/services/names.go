package services

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"

	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// ownMapName names the affinity map that a Service port had to itself, for one list of endpoints and
// one of their ports, before Service ports shared them: eight letters of a hash, which make it
// unique whatever is cut off, and then text to read.
//
// Length: 8 + 1 + 63 + 1 + 63 + 1 + 63 = 200 at most, as Kubernetes names are DNS labels; with
// the longest prefix ("members-local-", 14) and suffix ("-65535", 6) 220, within the 255
// that the kernel allows (NFT_NAME_MAXLEN is 256 with the NUL).
func ownMapName(id tracker.PortID, g group) string {
	identity := id.Namespace + "/" + id.Service + ":" + id.Port + "/" + id.Protocol.String()
	sum := sha256.Sum256([]byte(identity))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
	name := hash + "-" + cut(plain(id.Namespace+"-"+id.Service+"-"+portText(id)), 191)
	return layout.AffinityPrefix + layout.LocalInfix(g.local) + name + "-" + strconv.Itoa(int(g.port))
}

func portText(id tracker.PortID) string {
	if id.Port == "" {
		return id.Protocol.String()
	}
	return id.Port
}

// plain replaces everything that an nft identifier cannot hold.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, s)
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
