package inspect

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// A TableStatus counts what one table holds.
type TableStatus struct {
	Family       string `json:"family"`
	Services     int    `json:"services"`
	ServicePorts int    `json:"servicePorts"`
	Frontends    int    `json:"frontends"`
	ClusterIPs   int    `json:"clusterIPFrontends"`
	BalancerIPs  int    `json:"loadBalancerIPFrontends"`
	ExternalIPs  int    `json:"externalIPFrontends"`
	NodePorts    int    `json:"nodePortFrontends"`
	Unreachable  int    `json:"frontendsWithoutEndpoints"` // rejected or dropped
	Endpoints    int    `json:"endpoints"`                 // distinct addresses and ports
	Places       int    `json:"endpointElements"`
	PolicyChains int    `json:"policyChains"`
	AffinityMaps int    `json:"affinityMaps"`
	Clients      uint32 `json:"affinityClients"` // distinct clients of each Service port
	// FullestPercent is how full the fullest affinity map is.
	FullestPercent int `json:"fullestAffinityMapPercent"`
	ForeignRules   int `json:"foreignRules"` // that kube-nft never writes
	// Refused counts the packets of new connections that were refused, by cause.
	Refused map[string]uint64 `json:"refusedPackets"`
	// Annotations counts the Service ports that show an annotation, by "key: value".
	Annotations map[string]int `json:"annotations,omitempty"`
	// FrontendsDigest is the same on all nodes that serve the same frontends, and EndpointsDigest on all nodes of a
	// zone whose frontends with policy Cluster have the same endpoints.
	FrontendsDigest string `json:"frontendsDigest"`
	EndpointsDigest string `json:"endpointsDigest"`
}

// countedClients is how many clients are counted one by one where the kernel does not count them.
const countedClients = 1_000_000

func (i *inspection) tableStatus(ctx context.Context, t *readback.Table) (s TableStatus, err error) {
	s = TableStatus{Family: t.Family.String(), PolicyChains: t.PolicyChains(), ForeignRules: t.RawRules(),
		Annotations: make(map[string]int)}
	frontends := t.Frontends()
	names, ports := make(map[string]bool), make(map[string]map[string]bool)
	for _, service := range frontends {
		names[service.Name.Namespace+"/"+service.Name.Name] = true
		port := service.Name.String() + service.Protocol.String()
		if ports[port] == nil {
			ports[port] = make(map[string]bool)
		}
		for _, annotation := range service.Annotations() { // some frontends may not show them all
			if !ports[port][annotation] {
				ports[port][annotation] = true
				s.Annotations[annotation]++
			}
		}
		s.Places += service.Cluster.AllPlaces() + service.Local.AllPlaces()
		if service.Cluster.Len()+service.Local.Len() == 0 {
			s.Unreachable++
		}
		switch service.Kind {
		case readback.KindClusterIP:
			s.ClusterIPs++
		case readback.KindNodePort:
			s.NodePorts++
		case readback.KindLoadBalancerIP:
			s.BalancerIPs++
		default:
			s.ExternalIPs++
		}
	}
	s.Services, s.ServicePorts, s.Frontends = len(names), len(ports), len(frontends)
	s.Endpoints = readback.Distinct(frontends)
	s.FrontendsDigest, s.EndpointsDigest = digestOf(frontends)
	usage, err := i.kernel.DynamicFill(ctx, t.Family, countedClients)
	if err != nil {
		return s, err
	}
	s.AffinityMaps = len(usage)
	for _, u := range usage {
		if u.Size > 0 {
			s.FullestPercent = max(s.FullestPercent, int(uint64(u.Count)*100/uint64(u.Size)))
		}
	}
	if s.Refused, err = readback.ReadRefusals(ctx, i.kernel, t.Family); err != nil {
		return s, err
	}
	// A client of a Service port counts once, although it has an entry for each of the two lists of
	// endpoints that it uses.
	entries, err := readback.ReadAffinityEntries(ctx, i.kernel, t)
	if err != nil {
		return s, err
	}
	for _, service := range withAffinity(frontends) {
		distinct := make(map[netip.Addr]bool)
		for _, c := range entries.Clients(&service) {
			distinct[c.Address] = true
		}
		s.Clients += uint32(len(distinct))
	}
	return s, nil
}

// digestOf returns a digest of what must be the same on all nodes: the frontends with their Services. Endpoint lists of
// policy Cluster must be the same on the nodes of one zone, because hints may give a zone endpoints of its own.
func digestOf(frontends []readback.Frontend) (ofFrontends, ofEndpoints string) {
	var names, lists []string
	known := make(map[*netip.AddrPort]string) // by the memory of lists, which frontends share
	for i := range frontends {
		f := &frontends[i]
		name := f.Frontend.String() + " " + f.Name.String()
		names = append(names, name)
		policy, ok := layout.PolicyOf(f.Verdict)
		if kind := policy.Open().Kind; ok && (kind == layout.Internal || kind == layout.External) {
			lists = append(lists, name+" "+digestOfList(f.Cluster, known))
		}
	}
	return digest(names), digest(lists)
}

// digestOfList returns a digest of a list. It depends neither on the order of the endpoints nor on whether frontends
// share the list.
func digestOfList(l readback.List, known map[*netip.AddrPort]string) string {
	if l.Len() == 0 {
		return ""
	}
	addrs, port := known[&l.Endpoints[0]], l.Port
	if l.Port == 0 {
		port = slices.MinFunc(l.Endpoints, func(a, b netip.AddrPort) int { return cmp.Compare(a.Port(), b.Port()) }).Port()
	}
	if addrs == "" {
		var texts []string
		for _, ep := range l.Endpoints {
			if ep.Port() == port || l.Port != 0 {
				texts = append(texts, ep.Addr().String())
			} else {
				texts = append(texts, ep.String())
			}
		}
		addrs = digest(texts)
		known[&l.Endpoints[0]] = addrs
	}
	return fmt.Sprint(addrs, " ", port)
}

// digestLen is how many bytes of a hash a digest has.
const digestLen = 8

// digest hashes texts, whatever their order.
func digest(texts []string) string {
	slices.Sort(texts)
	h := sha256.New()
	for _, text := range texts {
		_, _ = io.WriteString(h, text+"\n") // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:digestLen])
}

// tableRows returns the tables for people, one column for each.
func tableRows(tables []TableStatus) (rows [][]string) {
	for _, head := range []string{
		"Kernel", "Services", "Service ports", "Frontends", "  cluster IPs", "  load-balancer IPs", "  external IPs",
		"  node ports", "  no endpoint",
		"Endpoints", "  in all lists", "Policy chains", "Affinity maps", "  clients", "  fullest", "Foreign rules",
	} {
		rows = append(rows, []string{head})
	}
	for _, t := range tables {
		for i, cell := range []any{
			t.Family, t.Services, t.ServicePorts, t.Frontends, t.ClusterIPs, t.BalancerIPs, t.ExternalIPs, t.NodePorts,
			t.Unreachable,
			t.Endpoints, t.Places, t.PolicyChains, t.AffinityMaps, t.Clients, fmt.Sprintf("%d%%", t.FullestPercent),
			t.ForeignRules,
		} {
			rows[i] = append(rows[i], fmt.Sprint(cell))
		}
	}
	for _, option := range append(tracker.Options(), readback.Derived[:]...) {
		row, shown := []string{"  " + option.Word}, 0
		for _, t := range tables {
			n := t.Annotations[option.Annotation]
			row, shown = append(row, strconv.Itoa(n)), shown+n
		}
		if shown > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}
