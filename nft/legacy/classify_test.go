package legacy

import "testing"

func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		table, chain string
		want         creator
	}{
		{"nat", "KUBE-SERVICES", kubeProxy},
		{"nat", "KUBE-NODEPORTS", kubeProxy},
		{"nat", "KUBE-POSTROUTING", kubeProxy},
		{"nat", "KUBE-MARK-MASQ", kubeProxy},
		{"nat", "KUBE-PROXY-CANARY", kubeProxy},
		{"nat", "KUBE-NODE-PORT", kubeProxy},
		{"nat", "KUBE-LOAD-BALANCER", kubeProxy},
		{"nat", "KUBE-SVC-TCOU7JCQXEZGVUNU", kubeProxy},
		{"nat", "KUBE-SVL-TCOU7JCQXEZGVUNU", kubeProxy},
		{"nat", "KUBE-SEP-TCOU7JCQXEZGVUNU", kubeProxy},
		{"nat", "KUBE-FW-TCOU7JCQXEZGVUNU", kubeProxy},
		{"nat", "KUBE-EXT-TCOU7JCQXEZGVUNU", kubeProxy},
		{"nat", "KUBE-XLB-TCOU7JCQXEZGVUNU", kubeProxy},
		{"filter", "KUBE-SERVICES", kubeProxy},
		{"filter", "KUBE-EXTERNAL-SERVICES", kubeProxy},
		{"filter", "KUBE-FORWARD", kubeProxy},
		{"filter", "KUBE-NODEPORTS", kubeProxy},
		{"filter", "KUBE-PROXY-FIREWALL", kubeProxy},
		{"filter", "KUBE-SOURCE-RANGES-FIREWALL", kubeProxy},
		{"filter", "KUBE-IPVS-FILTER", kubeProxy},
		{"filter", "KUBE-IPVS-OUT-FILTER", kubeProxy},
		{"mangle", "KUBE-PROXY-CANARY", kubeProxy},

		{"filter", "KUBE-FIREWALL", kubelet},
		{"nat", "KUBE-FIREWALL", kubelet}, // also of an IPVS mode long gone: not to be told apart
		{"mangle", "KUBE-KUBELET-CANARY", kubelet},
		{"mangle", "KUBE-IPTABLES-HINT", kubelet},
		{"nat", "KUBE-MARK-DROP", kubelet},
		{"nat", "KUBE-HOSTPORTS", kubelet},
		{"nat", "KUBE-HP-TCOU7JCQXEZGVUNU", kubelet},

		{"nat", "PREROUTING", foreign},
		{"nat", "CNI-HOSTPORT-DNAT", foreign},
		{"nat", "KUBE-SVC-ADMIN", foreign},
		{"nat", "KUBE-SVC-TCOU7JCQXEZGVUN1", foreign},
		{"nat", "KUBE-SVC-TCOU7JCQXEZGVUNUU", foreign},
		{"nat", "KUBE-FW-tcou7jcqxezgvunu", foreign},
		{"filter", "KUBE-SVC-TCOU7JCQXEZGVUNU", foreign},
		{"filter", "KUBE-POD-FW-TCOU7JCQXEZGVUNU", foreign},
		{"filter", "KUBE-NWPLCY-TCOU7JCQXEZGVUNU", foreign},
		{"filter", "KUBE-ROUTER-FORWARD", foreign},
		{"mangle", "KUBE-SERVICES", foreign},
		{"raw", "KUBE-SERVICES", foreign},
	} {
		if got := classify(tt.table, tt.chain); got != tt.want {
			t.Errorf("%s %s: creator %d, want %d", tt.table, tt.chain, got, tt.want)
		}
	}
}

// TestJumpsToKubeProxy checks that where kube-proxy's rules begin is kube-proxy's.
func TestJumpsToKubeProxy(t *testing.T) {
	for _, table := range iptablesTables {
		for _, chain := range []string{"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD",
			"KUBE-PROXY-FIREWALL", "KUBE-NODEPORTS", "KUBE-NODE-PORT", "KUBE-POSTROUTING",
			"KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER"} {
			if fixed[table+" "+chain] != (classify(table, chain) == kubeProxy && !inside(table, chain)) {
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
