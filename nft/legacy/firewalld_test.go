package legacy

import (
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// firewalldRules are the chain of firewalld 2.3 for forwarded packets, in the shape of its nftables backend.
const firewalldRules = `table inet firewalld {
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		ip6 daddr { ::/96, ::ffff:0.0.0.0/96 } log prefix "RFC3964_IPv4_REJECT: " reject with icmpv6 addr-unreachable
		jump filter_FORWARD_POLICIES
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD_POLICIES {
		iifname "cni0" oifname "cni0" accept
		reject with icmpx admin-prohibited
	}
}
`

// TestFirewalldInKernel: firewalld refuses what others translate if it has no rule that accepts that.
func TestFirewalldInKernel(t *testing.T) {
	for name, tt := range map[string]struct {
		rules string
		want  bool
	}{
		"no firewalld":       {"", false},
		"as usual":           {firewalldRules, false},
		"StrictForwardPorts": {strings.Replace(firewalldRules, "\t\tct status dnat accept\n", "", 1), true},
		"for some alone": {strings.Replace(firewalldRules, "ct status dnat accept",
			"ct status dnat tcp dport 80 accept", 1), true},
		"too late": {strings.Replace(strings.Replace(firewalldRules, "\t\tct status dnat accept\n", "", 1),
			"admin-prohibited\n", "admin-prohibited\n\t\tct status dnat accept\n", 1), true},
		"of the source address": {strings.Replace(firewalldRules, "ct status dnat accept", "ct status snat accept", 1), true},
		"log and accept": {strings.Replace(firewalldRules, "ct status dnat accept", "ct status dnat counter accept",
			1), false},
		"another table": {strings.Replace(firewalldRules, "inet firewalld", "inet firewalld2", 1), false},
		"no such chain": {"table inet firewalld { }\n", false},
		"accepts the rest": {
			"table inet firewalld {\n chain filter_FORWARD {\n type filter hook forward priority 10;\n ct state invalid " +
				"drop\n }\n}\n", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			newNode(t)
			if tt.rules != "" {
				lab.Run(t, tt.rules, "nft", "-f", "-")
			}
			if got, err := FirewalldRefuses(t.Context()); got != tt.want || err != nil {
				t.Errorf("%v, %v; want %v", got, err, tt.want)
			}
		})
	}
}
