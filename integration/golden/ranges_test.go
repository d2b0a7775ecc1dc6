package golden

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// rangeLists are lists of ranges whose shapes have led interval sets astray: touching,
// nested, repeated, of one address, at either end of the address space, all but everything.
var rangeLists = map[string][2]string{
	"none":            {"", ""},
	"touching":        {"10.0.1.0/24,10.0.2.0/24", "2001:db8:1::/48,2001:db8:2::/48"},
	"joined":          {"10.0.2.0/24,10.0.3.0/24", "2001:db8:2::/48,2001:db8:3::/48"},
	"nested":          {"10.0.0.0/8,10.0.1.0/24,10.0.1.7/32", "2001:db8::/32,2001:db8:1::/48,2001:db8:1::7/128"},
	"repeated":        {"10.0.1.0/24,10.0.1.0/24,10.0.1.9/24", "2001:db8:1::/48,2001:db8:1::/48"},
	"single":          {"10.0.1.1/32,10.0.1.2/32,10.0.1.4/32", "2001:db8::1/128,2001:db8::2/128,2001:db8::4/128"},
	"first":           {"0.0.0.0/32,0.0.0.2/31", "::/128,::2/127"},
	"last":            {"255.255.255.255/32,255.255.255.252/31", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"},
	"lower half":      {"0.0.0.0/1", "::/1"},
	"upper half":      {"128.0.0.0/1", "8000::/1"},
	"all but one":     {allBut32, allBut128},
	"everything":      {"0.0.0.0/0", "::/0"},
	"both halves":     {"0.0.0.0/1,128.0.0.0/1", "::/1,8000::/1"},
	"next to a range": {"10.0.1.0/24,10.0.2.0/25,10.0.0.128/25", "2001:db8:1::/48,2001:db8:2::/49,2001:db8:0:8000::/49"},
}

// The ranges of all addresses but the last: one of each length.
var (
	allBut32  = complementOfLast("%d.%d.%d.%d", 32, 8)
	allBut128 = complementOfLast("%x:%x:%x:%x:%x:%x:%x:%x", 128, 16)
)

// complementOfLast lists the ranges of all addresses of so many bits but the last.
func complementOfLast(format string, bits, group int) string {
	var list []string
	for length := 1; length <= bits; length++ {
		parts := make([]any, bits/group)
		for i := range parts {
			// Ones above the length's last bit, which is zero.
			ones := min(max(length-1-i*group, 0), group)
			parts[i] = (1<<ones - 1) << (group - ones)
		}
		list = append(list, fmt.Sprintf(format+"/%d", append(parts, length)...))
	}
	return strings.Join(list, ",")
}

// rangeObjects returns a Service of both families whose load-balancer IPs have
// the ranges, and a ServiceCIDR that consists of them: of those that one may have.
func rangeObjects(lists [2]string) string {
	sources := strings.FieldsFunc(lists[0]+","+lists[1], func(r rune) bool { return r == ',' })
	services := slices.DeleteFunc(slices.Clone(sources), func(r string) bool { return strings.HasSuffix(r, "/0") })
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.10, "fd00:10:96::10"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  loadBalancerSourceRanges: %s
  ports: [{name: http, protocol: TCP, port: 80}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.9}, {ip: 198.51.100.10}, {ip: "2001:db8:51::9"}]}}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: ranges}
spec: {cidrs: %s}
`, yamlList(sources), yamlList(services))
}

// yamlList prints a list of strings in YAML.
func yamlList(list []string) string {
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = strconv.Quote(text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// TestRangesInKernel commits allowed sources and Service CIDRs of every shape, each after
// each other one: the kernel must hold what is wanted, and nft must list and load it.
func TestRangesInKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	p := newPlay(t, scenarioSettings(t, nil))
	commit(t, k, change.Diff(nil, p.ruleset.Want()))
	p.ruleset.Committed()
	turn := func(name string) {
		p.applyText(t, rangeObjects(rangeLists[name]))
		commit(t, k, p.batch())
		p.ruleset.Committed()
	}
	for from := range rangeLists {
		for to := range rangeLists {
			turn(from)
			turn(to)
			checkHeld(t, k, from+", then "+to+":", p.ruleset.Want())
		}
		turn(from)
		checkTriangle(t, k, p.ruleset.Want())
		if t.Failed() {
			t.Fatalf("ranges: %s", from)
		}
	}
}
