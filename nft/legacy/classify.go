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
	_, isFixed := fixed[table+" "+chain]
	switch {
	case isFixed:
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

// fixed are the chains that kube-proxy always has, by table and name. The value says whether its rules in base chains
// lead to the chain: releases differ in the base chains that they use. The names after the canary belong to the IPVS
// mode.
var fixed = map[string]bool{
	"nat KUBE-SERVICES": true, "nat KUBE-NODEPORTS": true, "nat KUBE-POSTROUTING": true,
	"nat KUBE-MARK-MASQ": false, "nat KUBE-PROXY-CANARY": false,
	"nat KUBE-NODE-PORT": false, "nat KUBE-LOAD-BALANCER": false,

	"filter KUBE-SERVICES": true, "filter KUBE-EXTERNAL-SERVICES": true, "filter KUBE-FORWARD": true,
	"filter KUBE-NODEPORTS": true, "filter KUBE-PROXY-FIREWALL": true, "filter KUBE-PROXY-CANARY": false,
	"filter KUBE-NODE-PORT": true, "filter KUBE-SOURCE-RANGES-FIREWALL": false,
	"filter KUBE-IPVS-FILTER": true, "filter KUBE-IPVS-OUT-FILTER": true,

	"mangle KUBE-PROXY-CANARY": false,
}

// perService matches the chains that kube-proxy has for each Service port or endpoint: a prefix and
// the first 16 digits of a hash in base 32. KUBE-EXT- replaced KUBE-XLB- in 1.24.
var perService = regexp.MustCompile(`^(KUBE-(?:SVC|SVL|SEP|FW|EXT|XLB)-)[A-Z2-7]{16}$`)
