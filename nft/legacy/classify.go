package legacy

import (
	"regexp"
	"strings"
)

// A creator is the program that made a chain, by the chain's table and name.
type creator uint8

// The creators. Chains without the prefix KUBE- are always foreign.
const (
	foreign   creator = iota // an administrator, a CNI plug-in, any other program
	kubelet                  // the kubelet, in use or abandoned: not ours to remove
	kubeProxy                // kube-proxy in its iptables or IPVS mode, any release
)

// classify returns the creator of a chain in the tables filter, nat or mangle. If the name does not tell, the
// chain is foreign: kube-router names chains KUBE-ROUTER-*, KUBE-NWPLCY-* and KUBE-POD-FW-*.
func classify(table, chain string) creator {
	switch chain { // what the kubelet creates, or did so before 1.28
	case "KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT":
		return kubelet
	}
	switch {
	case isFixed(table, chain):
		return kubeProxy
	case table != "nat":
		return foreign
	case chain == "KUBE-MARK-DROP", chain == "KUBE-HOSTPORTS", strings.HasPrefix(chain, "KUBE-HP-"):
		return kubelet // of host ports, from the days of dockershim
	case perService.MatchString(chain):
		return kubeProxy
	}
	return foreign
}

// isFixed reports whether the chain is one that kube-proxy always has. The names after the canary
// belong to the IPVS mode.
func isFixed(table, chain string) bool {
	switch table + " " + chain {
	case "nat KUBE-SERVICES", "nat KUBE-NODEPORTS", "nat KUBE-POSTROUTING",
		"nat KUBE-MARK-MASQ", "nat KUBE-PROXY-CANARY",
		"nat KUBE-NODE-PORT", "nat KUBE-LOAD-BALANCER",
		"filter KUBE-SERVICES", "filter KUBE-EXTERNAL-SERVICES", "filter KUBE-FORWARD",
		"filter KUBE-NODEPORTS", "filter KUBE-PROXY-FIREWALL", "filter KUBE-PROXY-CANARY",
		"filter KUBE-NODE-PORT", "filter KUBE-SOURCE-RANGES-FIREWALL",
		"filter KUBE-IPVS-FILTER", "filter KUBE-IPVS-OUT-FILTER",
		"mangle KUBE-PROXY-CANARY":
		return true
	}
	return false
}

// perService matches the chains that kube-proxy has for each Service port or endpoint: a prefix and
// the first 16 digits of a hash in base 32. KUBE-EXT- replaced KUBE-XLB- in 1.24.
var perService = regexp.MustCompile(`^(KUBE-(?:SVC|SVL|SEP|FW|EXT|XLB)-)[A-Z2-7]{16}$`)

// isEntrance reports whether kube-proxy's base-chain rules lead to the chain. Releases differ in
// the base chains they use; the set is the union of all.
func isEntrance(table, chain string) bool {
	switch chain {
	case "KUBE-SERVICES", "KUBE-NODEPORTS":
		return table != "mangle"
	case "KUBE-POSTROUTING":
		return table == "nat"
	case "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
		"KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER":
		return table == "filter"
	}
	return false
}
