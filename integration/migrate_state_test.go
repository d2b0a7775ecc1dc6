package integration

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/netns"
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
		netns.Run(t, s.IPTables(), iptablesProgram(s.Family, backend, "restore"), "-w", "-c")
	}
}

// saveIPTables lists both families. Counters and times are left out: traffic changes them.
func saveIPTables(backend string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		var all strings.Builder
		for _, f := range nft.Families {
			for line := range strings.Lines(netns.Run(t, "", iptablesProgram(f, backend, "save"))) {
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
		netns.Run(t, fmt.Sprintf("add table %s %s\ndelete table %s %s\n", s.Family.NFT(), table, s.Family.NFT(), table), "nft", "-f", "-")
	}
	netns.Run(t, s.NFTables(), "nft", "-f", "-")
}

// saveProxyTables lists what is not ours, without counters.
func saveProxyTables(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, table := range strings.SplitAfter(netns.Run(t, "", "nft", "-s", "list", "ruleset"), "\n}\n") {
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

// migrationObjects are the objects of the API that the shapes stand for. Services of each
// family are objects of their own.
func migrationObjects(shapes []legacytest.Shape) []map[string]any {
	objects := []map[string]any{{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-1"},
		"status": map[string]any{"addresses": []any{
			map[string]any{"type": "InternalIP", "address": migrationNode(nft.IP).String()},
			map[string]any{"type": "InternalIP", "address": migrationNode(nft.IP6).String()},
		}},
	}}
	for _, s := range shapes {
		for i := range s.Services {
			objects = append(objects, migrationService(s, i), migrationSlice(s, i))
		}
	}
	return objects
}

// migrationName names Service i of a shape.
func migrationName(s legacytest.Shape, i int) string {
	return fmt.Sprintf("service-%s-%d", s.Family.NFT(), i)
}

// migrationService is Service i of a shape.
func migrationService(s legacytest.Shape, i int) map[string]any {
	port := map[string]any{"name": "http", "port": 80, "protocol": strings.ToUpper(s.Protocol(i))}
	spec := map[string]any{
		"type": "ClusterIP", "clusterIP": s.ClusterIP(i).String(), "clusterIPs": []any{s.ClusterIP(i).String()},
		"ipFamilies": []any{apiFamily(s.Family)}, "ports": []any{port},
	}
	if nodePort, ok := s.NodePort(i); ok {
		spec["type"] = "NodePort"
		port["nodePort"] = nodePort // the other family has the same, in a table of its own
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Service", "spec": spec,
		"metadata": map[string]any{"namespace": "shop", "name": migrationName(s, i)},
	}
}

// migrationSlice has the endpoints of Service i, if it has any.
func migrationSlice(s legacytest.Shape, i int) map[string]any {
	endpoints := []any{}
	for j := range s.Endpoints {
		if !s.Refused(i) {
			endpoints = append(endpoints, map[string]any{"addresses": []any{s.Endpoint(i, j).String()}})
		}
	}
	return map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": apiFamily(s.Family),
		"metadata": map[string]any{
			"namespace": "shop", "name": migrationName(s, i) + "-1",
			"labels": map[string]any{"kubernetes.io/service-name": migrationName(s, i)},
		},
		"ports":     []any{map[string]any{"name": "http", "port": 8080, "protocol": strings.ToUpper(s.Protocol(i))}},
		"endpoints": endpoints,
	}
}

func apiFamily(f nft.Family) string { return map[nft.Family]string{nft.IP: "IPv4", nft.IP6: "IPv6"}[f] }

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
