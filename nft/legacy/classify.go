package legacy

import "strings"

// An Owner is who created a chain, by its table and name.
type Owner uint8

// The owners. Chains without the prefix KUBE- are always Foreign.
const (
	Foreign   Owner = iota // an administrator, a CNI plug-in, any other program
	Kubelet                // the kubelet, which keeps or has abandoned it: not ours to remove
	KubeProxy              // kube-proxy in its iptables or IPVS mode, any release
)

// Classify tells who created a chain of the tables filter, nat or mangle. In doubt it is
// Foreign: kube-router names chains KUBE-ROUTER-*, KUBE-NWPLCY-* and KUBE-POD-FW-*.
func Classify(table, chain string) Owner {
	switch {
	case isKubelet(table, chain):
		return Kubelet
	case isFixed(table, chain), table == "nat" && isPerService(chain):
		return KubeProxy
	}
	return Foreign
}

// isKubelet reports whether the kubelet creates the chain, or did so before 1.28. Host
// port chains are from the days of dockershim.
func isKubelet(table, chain string) bool {
	switch chain {
	case "KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT":
		return true
	case "KUBE-MARK-DROP", "KUBE-HOSTPORTS":
		return table == "nat"
	}
	return table == "nat" && strings.HasPrefix(chain, "KUBE-HP-")
}

// isFixed reports whether the chain is one of those that kube-proxy always has. The names
// after the canary are of the IPVS mode.
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

// servicePrefixes are of the chains that kube-proxy has per Service port or endpoint;
// KUBE-XLB- was replaced by KUBE-EXT- in 1.24.
var servicePrefixes = [...]string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-"}

// isPerService reports whether the chain belongs to one Service port or endpoint: a known
// prefix and the first 16 digits of a hash in base 32.
func isPerService(chain string) bool {
	for _, prefix := range servicePrefixes {
		if hash, ok := strings.CutPrefix(chain, prefix); ok {
			return isHash(hash)
		}
	}
	return false
}

// isHash reports whether s has the form of the hash in kube-proxy's chain names.
func isHash(s string) bool {
	for _, c := range s {
		if (c < 'A' || c > 'Z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(s) == 16
}

// isEntrance reports whether kube-proxy sends to the chain from base chains. The set is
// wider than any one release's, which differ in the base chains they use.
func isEntrance(table, chain string) bool {
	switch chain {
	case "KUBE-SERVICES":
		return table != "mangle"
	case "KUBE-POSTROUTING":
		return table == "nat"
	case "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
		"KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER":
		return table == "filter"
	case "KUBE-NODEPORTS":
		return table != "mangle"
	}
	return false
}

// refuses reports whether the chain of table filter may reject or drop packets that
// kube-nft has yet to see or has already sent on their way.
func refuses(table, chain string) bool {
	return table == "filter" && isFixed(table, chain) && chain != "KUBE-PROXY-CANARY"
}
