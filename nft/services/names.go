package services

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// The fixed sets and maps, in the order in which they are created and listed. Those that
// hold most come first: the kernel finds a set by walking the table's list of them.
const (
	servicesMap              = "services"
	endpointsMap             = "endpoints"
	localEndpointsMap        = "local-endpoints"
	nodePortsMap             = "node-ports"
	nodePortEndpointsMap     = "node-port-endpoints"
	nodePortLocalEndpointMap = "node-port-local-endpoints"
	nodePortAddressesSet     = "node-port-addresses"
	clusterIPsSet            = "cluster-ips"
	serviceCIDRsSet          = "service-cidrs"
	hairpinSet               = "hairpin"
	membersSet               = "members"
	affinityFrontendsMap     = "sticky"
	affinityNodePortsMap     = "sticky-node-ports"
	affinityPrefix           = "affinity-" // of affinity maps, and in the names of chains before a number
)

// Lists says how the lists in each map of endpoint lists are found: for kernel.Client.
var Lists = func() map[string]nft.ListKeys {
	lists := map[string]nft.ListKeys{
		endpointsMap: {Map: servicesMap}, localEndpointsMap: {Map: servicesMap},
		nodePortEndpointsMap: {Map: nodePortsMap}, nodePortLocalEndpointMap: {Map: nodePortsMap},
	}
	for _, name := range sharedListMaps() {
		lists[name] = nft.ListKeys{OfChain: listOfChain(name)}
	}
	return lists
}()

// The fixed chains. Base chains are named after their type and hook.
const (
	markChain                = "mark-for-masquerade"
	masqueradeChain          = "masquerade-marked"
	rejectChain              = "reject-new"
	servicesChain            = "services"
	updateAffinityChain      = "record-affinity"
	preroutingChain          = "nat-prerouting"
	outputChain              = "nat-output"
	inputChain               = "nat-input"
	affinityPostroutingChain = "nat-postrouting-record"
	postroutingChain         = "nat-postrouting"
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
	return affinityPrefix + localInfix(g.local) + name + "-" + strconv.Itoa(int(g.port))
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

// comment is what nft list shows beside a frontend: namespace/name:port. Three names of 63
// characters overflow the 127 bytes of a comment; then its end is cut off. It is what the
// kernel will hold, whatever a name is made of.
func comment(id tracker.PortID) string {
	s := id.Namespace + "/" + id.Service
	if id.Port != "" {
		s += ":" + id.Port
	}
	return nft.PlainComment(s)
}

func localInfix(local bool) string {
	if local {
		return "local-"
	}
	return ""
}
