package migration

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
)

// An oldState is what kube-proxy has left on a node, of both families.
type oldState struct {
	name string
	load func(t *testing.T, s legacytest.Shape)
	// save lists the state: iptables-save, or nft list ruleset without our tables.
	save func(t *testing.T) string
}

// oldStates are the kinds of it.
var oldStates = []oldState{
	{"legacy", loadIPTables("legacy"), saveIPTables("legacy")},
	{"nft-compat", loadIPTables("nft"), saveIPTables("nft")},
	{"kube-proxy-nftables", loadProxyTables, saveProxyTables},
}

// shapesOf are clusters with that many Services in each family.
func shapesOf(services int) []legacytest.Shape {
	return []legacytest.Shape{
		{Family: nft.IP, Services: services, Endpoints: 3},
		{Family: nft.IP6, Services: services, Endpoints: 3},
	}
}

// iptablesProgram names one of the iptables programs.
func iptablesProgram(f nft.Family, backend, verb string) string {
	return map[nft.Family]string{nft.IP: "iptables-", nft.IP6: "ip6tables-"}[f] + backend + "-" + verb
}

func loadIPTables(backend string) func(*testing.T, legacytest.Shape) {
	return func(t *testing.T, s legacytest.Shape) {
		t.Helper()
		lab.Run(t, s.IPTables(), iptablesProgram(s.Family, backend, "restore"), "-w", "-c")
	}
}

// saveIPTables lists both families. Counters and times are left out: traffic changes them.
func saveIPTables(backend string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		var all strings.Builder
		for _, f := range nft.Families {
			for line := range strings.Lines(lab.Run(t, "", iptablesProgram(f, backend, "save"))) {
				if before, _, counted := strings.Cut(line, " ["); counted && strings.HasPrefix(line, ":") {
					line = before + "\n"
				}
				if !strings.HasPrefix(line, "#") {
					all.WriteString(line)
				}
			}
		}
		return all.String()
	}
}

// loadProxyTables replaces kube-proxy's table of a family in one transaction.
func loadProxyTables(t *testing.T, s legacytest.Shape) {
	t.Helper()
	for _, table := range []string{"kube-proxy", "admin"} {
		lab.Run(t, fmt.Sprintf("add table %s %s\ndelete table %s %s\n", s.Family.NFT(), table, s.Family.NFT(), table),
			"nft", "-f", "-")
	}
	lab.Run(t, s.NFTables(), "nft", "-f", "-")
}

// saveProxyTables lists what is not ours, without counters.
func saveProxyTables(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, table := range strings.SplitAfter(lab.Run(t, "", "nft", "-s", "list", "ruleset"), "\n}\n") {
		if !strings.Contains(table, " kube-nft {") {
			all.WriteString(table)
		}
	}
	return all.String()
}

// foreign returns what must stay of a listing, proxys what must go.
func foreign(saved string) string { return legacytest.Foreign(withoutProxyTables(saved)) }

func proxys(saved string) string {
	left := legacytest.Proxys(saved)
	if strings.Contains(saved, " kube-proxy {\n\t") && saved != withoutProxyTables(saved) {
		left += "tables kube-proxy"
	}
	return left
}

// withoutProxyTables leaves out the tables of kube-proxy's nftables mode.
func withoutProxyTables(saved string) string {
	var kept strings.Builder
	for _, table := range strings.SplitAfter(saved, "\n}\n") {
		if !strings.HasPrefix(table, "table ip kube-proxy ") && !strings.HasPrefix(table, "table ip6 kube-proxy ") {
			kept.WriteString(table)
		}
	}
	return kept.String()
}

// migrationManifest holds the objects of the API that the shapes stand for.
func migrationManifest(shapes []legacytest.Shape) string {
	return lab.Manifest(migrationObjects(shapes)...)
}

// migrationObjects are the objects. Services of each family are objects of their own.
func migrationObjects(shapes []legacytest.Shape) []any {
	objects := []any{lab.Node("node-1", migrationNode(nft.IP), migrationNode(nft.IP6))}
	for _, s := range shapes {
		for i := range s.Services {
			name := fmt.Sprintf("service-%s-%d", s.Family.NFT(), i)
			service := lab.Service("shop", name, s.ClusterIP(i))
			protocol := corev1.Protocol(strings.ToUpper(s.Protocol(i)))
			port := &service.Spec.Ports[0]
			port.Protocol = protocol
			if s.Affine(i) {
				service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				service.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
					ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(3 * 3600))},
				}
			}
			if nodePort, ok := s.NodePort(i); ok {
				service.Spec.Type = corev1.ServiceTypeNodePort
				port.NodePort = int32(nodePort) // the other family has the same, in a table of its own
			}
			if s.Local(i) {
				service.Spec.Type = corev1.ServiceTypeLoadBalancer
				service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: s.LoadBalancer(i).String()}}
			}
			var endpoints []netip.Addr
			for j := range s.Endpoints {
				if !s.Refused(i) {
					endpoints = append(endpoints, s.Endpoint(i, j))
				}
			}
			slice := lab.Slice("shop", name, 1, service.Spec.IPFamilies[0], endpoints)
			slice.Ports[0].Protocol = &protocol
			if len(slice.Endpoints) > 0 { // the local one of the shapes
				slice.Endpoints[0].NodeName = new("node-1")
			}
			objects = append(objects, service, slice)
		}
	}
	return objects
}

// migrationTargets are cluster IPs and node ports of each protocol and family; pods are
// those that have to listen for UDP.
func migrationTargets(shapes []legacytest.Shape) (targets []target, pods []netip.Addr) {
	for _, s := range shapes {
		for _, i := range []int{1, 6, 11, 16} { // with node ports, two of TCP and two of UDP
			nodePort, _ := s.NodePort(i)
			targets = append(targets,
				target{s.Protocol(i), netip.AddrPortFrom(s.ClusterIP(i), 80)},
				target{s.Protocol(i), netip.AddrPortFrom(migrationNode(s.Family), uint16(nodePort))})
			for j := range s.Endpoints {
				pods = append(pods, s.Endpoint(i, j))
			}
		}
	}
	return targets, pods
}
