// Package legacytest writes what kube-proxy leaves on a node, for tests of migrations. Choose a Shape, and load its
// text with the program of the mode:
//
//	shape := legacytest.Shape{Family: nft.IP, Services: 30, Endpoints: 2}
//	lab.Run(t, shape.IPTables(), "iptables-legacy-restore", "--counters") // or iptables-nft-restore
//	lab.Run(t, shape.NFTables(), "nft", "-f", "-")
//	lab.Run(t, shape.IPSets(), "ipset", "restore") // of the IPVS mode, before its rules
//	lab.Run(t, shape.IPVS(), "iptables-legacy-restore", "--counters")
//
// Methods of Shape, such as ClusterIP and NodePort, say what each Service has. Rules of other programs stand before,
// between and after kube-proxy's. A migration has to keep these, and their counters, which are not zero. Foreign and
// Proxys return the two parts of a saved ruleset.
package legacytest

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
)

// A Shape is the size of a cluster as one node sees it, in one family. Ports count from 0. Among
// any 30 Services every kind that kube-proxy distinguishes occurs.
type Shape struct {
	Family    nft.Family
	Services  int
	Endpoints int // of each Service that has any; at least 1
	// Borrowed adds foreign rules that lead to kube-proxy's chains, in table nat.
	Borrowed bool
}

// ClusterIP returns the cluster IP of Service i, which serves port 80.
func (s Shape) ClusterIP(i int) netip.Addr { return s.addr("10.96.0.0", "fd00:10:96::", i+1) }

// Protocol returns the protocol of Service i, tcp or udp.
func (s Shape) Protocol(i int) string {
	if i%10 == 6 {
		return "udp"
	}
	return "tcp"
}

// Endpoint returns endpoint j of Service i, which serves port 8080.
func (s Shape) Endpoint(i, j int) netip.Addr {
	return s.addr("10.244.0.0", "fd00:10:244::", 1+i*s.Endpoints+j)
}

// NodePort returns the node port of Service i, or false if it has none. Ports repeat after
// 13840 Services.
func (s Shape) NodePort(i int) (port int, ok bool) { return 30000 + i/5%2768, i%5 == 1 }

// Local reports whether Service i has a load balancer address, its external policy Local.
func (s Shape) Local(i int) bool { return i%6 == 2 }

// Refused reports whether Service i has no endpoints.
func (s Shape) Refused(i int) bool { return i%10 == 7 }

// Affine reports whether Service i has session affinity, of three hours.
func (s Shape) Affine(i int) bool { return i%10 == 4 }

// ClientList returns the name of the list of clients of endpoint j of Service i, in the iptables mode.
func (s Shape) ClientList(i, j int) string { return s.endpointChain(i, j) }

// ClientSet returns the name of the set of clients of endpoint j of Service i, in the nftables mode.
func (s Shape) ClientSet(i, j int) string { return "affinity-" + s.nftEndpoint(i, j) }

// LoadBalancer returns the load balancer address of Service i, if it is Local.
func (s Shape) LoadBalancer(i int) netip.Addr { return s.addr("198.18.0.0", "fd00:198:18::", i+1) }

// addr returns address n of a range.
func (s Shape) addr(v4, v6 string, n int) netip.Addr {
	raw := netip.MustParseAddr(s.word(v4, v6)).AsSlice()
	raw[len(raw)-1] += byte(n)
	raw[len(raw)-2] += byte(n >> 8)
	raw[len(raw)-3] += byte(n >> 16)
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}

// word returns the one for the Shape's family.
func (s Shape) word(v4, v6 string) string {
	if s.Family == nft.IP6 {
		return v6
	}
	return v4
}

// host returns the address as iptables lists it, with the length of its prefix.
func host(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// socket returns address and port as DNAT takes them.
func socket(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }

// chainName returns the name of a chain of a Service or endpoint as kube-proxy forms it.
func chainName(kind, of string) string {
	sum := sha256.Sum256([]byte(of))
	return "KUBE-" + kind + "-" + base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// Name returns the name of Service i's port as kube-proxy writes it.
func Name(i int) string { return fmt.Sprintf("shop/service-%d:http", i) }

// proxyLine matches what is kube-proxy's in the output of iptables-save: chains, rules inside them
// and jumps to them. It is independent of the code under test.
var proxyLine = regexp.MustCompile(`(^:|-A |-[jg] )KUBE-(` +
	`SERVICES|EXTERNAL-SERVICES|NODEPORTS|POSTROUTING|MARK-MASQ|FORWARD|PROXY-FIREWALL|PROXY-CANARY|` +
	`NODE-PORT|LOAD-BALANCER|SOURCE-RANGES-FIREWALL|IPVS-FILTER|IPVS-OUT-FILTER|` +
	`(SVC|SVL|SEP|FW|EXT|XLB)-[A-Z2-7]{16})( |$)`)

// Foreign returns the output of iptables-save without kube-proxy's lines, and without comments,
// which contain the time.
func Foreign(saved string) string {
	var kept strings.Builder
	for line := range strings.Lines(saved) {
		if !strings.HasPrefix(line, "#") && !proxyLine.MatchString(strings.TrimSuffix(line, "\n")) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// Proxys returns kube-proxy's lines of the output of iptables-save.
func Proxys(saved string) string {
	var found strings.Builder
	for line := range strings.Lines(saved) {
		if proxyLine.MatchString(strings.TrimSuffix(line, "\n")) {
			found.WriteString(line)
		}
	}
	return found.String()
}
