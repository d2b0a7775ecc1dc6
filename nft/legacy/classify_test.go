package legacy

import "testing"

func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		table, chain string
		want         Owner
	}{
		{"nat", "KUBE-SERVICES", KubeProxy},
		{"nat", "KUBE-NODEPORTS", KubeProxy},
		{"nat", "KUBE-POSTROUTING", KubeProxy},
		{"nat", "KUBE-MARK-MASQ", KubeProxy},
		{"nat", "KUBE-PROXY-CANARY", KubeProxy},
		{"nat", "KUBE-NODE-PORT", KubeProxy},
		{"nat", "KUBE-LOAD-BALANCER", KubeProxy},
		{"nat", "KUBE-SVC-TCOU7JCQXEZGVUNU", KubeProxy},
		{"nat", "KUBE-SVL-TCOU7JCQXEZGVUNU", KubeProxy},
		{"nat", "KUBE-SEP-TCOU7JCQXEZGVUNU", KubeProxy},
		{"nat", "KUBE-FW-TCOU7JCQXEZGVUNU", KubeProxy},
		{"nat", "KUBE-EXT-TCOU7JCQXEZGVUNU", KubeProxy},
		{"nat", "KUBE-XLB-TCOU7JCQXEZGVUNU", KubeProxy},
		{"filter", "KUBE-SERVICES", KubeProxy},
		{"filter", "KUBE-EXTERNAL-SERVICES", KubeProxy},
		{"filter", "KUBE-FORWARD", KubeProxy},
		{"filter", "KUBE-NODEPORTS", KubeProxy},
		{"filter", "KUBE-PROXY-FIREWALL", KubeProxy},
		{"filter", "KUBE-SOURCE-RANGES-FIREWALL", KubeProxy},
		{"filter", "KUBE-IPVS-FILTER", KubeProxy},
		{"filter", "KUBE-IPVS-OUT-FILTER", KubeProxy},
		{"mangle", "KUBE-PROXY-CANARY", KubeProxy},

		{"filter", "KUBE-FIREWALL", Kubelet},
		{"nat", "KUBE-FIREWALL", Kubelet}, // also of an IPVS mode long gone: not to be told apart
		{"mangle", "KUBE-KUBELET-CANARY", Kubelet},
		{"mangle", "KUBE-IPTABLES-HINT", Kubelet},
		{"nat", "KUBE-MARK-DROP", Kubelet},
		{"nat", "KUBE-HOSTPORTS", Kubelet},
		{"nat", "KUBE-HP-TCOU7JCQXEZGVUNU", Kubelet},

		{"nat", "PREROUTING", Foreign},
		{"nat", "CNI-HOSTPORT-DNAT", Foreign},
		{"nat", "KUBE-SVC-ADMIN", Foreign},
		{"nat", "KUBE-SVC-TCOU7JCQXEZGVUN1", Foreign},
		{"nat", "KUBE-SVC-TCOU7JCQXEZGVUNUU", Foreign},
		{"nat", "KUBE-FW-tcou7jcqxezgvunu", Foreign},
		{"filter", "KUBE-SVC-TCOU7JCQXEZGVUNU", Foreign},
		{"filter", "KUBE-POD-FW-TCOU7JCQXEZGVUNU", Foreign},
		{"filter", "KUBE-NWPLCY-TCOU7JCQXEZGVUNU", Foreign},
		{"filter", "KUBE-ROUTER-FORWARD", Foreign},
		{"mangle", "KUBE-SERVICES", Foreign},
		{"raw", "KUBE-SERVICES", Foreign},
	} {
		if got := Classify(tt.table, tt.chain); got != tt.want {
			t.Errorf("%s %s: owner %d, want %d", tt.table, tt.chain, got, tt.want)
		}
	}
}

// TestEntrances checks that where kube-proxy's rules begin is kube-proxy's.
func TestEntrances(t *testing.T) {
	for _, table := range iptablesTables {
		for _, chain := range []string{"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD",
			"KUBE-PROXY-FIREWALL", "KUBE-NODEPORTS", "KUBE-NODE-PORT", "KUBE-POSTROUTING",
			"KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER"} {
			if isEntrance(table, chain) != (Classify(table, chain) == KubeProxy && !inside(table, chain)) {
				t.Errorf("%s %s", table, chain)
			}
		}
	}
}

// inside reports whether kube-proxy reaches the chain from its own only.
func inside(table, chain string) bool { return table == "nat" && chain == "KUBE-NODE-PORT" }

func TestIsProxySet(t *testing.T) {
	for name, want := range map[string]bool{
		"KUBE-CLUSTER-IP": true, "KUBE-6-CLUSTER-IP": true, "KUBE-NODE-PORT-LOCAL-SCTP-HASH": true,
		"KUBE-ADMIN": false, "KUBE-6-": false, "CLUSTER-IP": false, "KUBE-DST-TCOU7JCQXEZGVUNU": false,
	} {
		if got := proxySets.MatchString(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
