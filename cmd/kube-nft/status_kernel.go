package main

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/kube-nft/kube-nft/nft"
)

// A tableStatus counts what one table holds.
type tableStatus struct {
	Family       string `json:"family"`
	Services     int    `json:"services"`
	ServicePorts int    `json:"servicePorts"`
	Frontends    int    `json:"frontends"`
	ClusterIPs   int    `json:"clusterIPFrontends"`
	ExternalIPs  int    `json:"externalIPFrontends"` // those of load balancers among them
	NodePorts    int    `json:"nodePortFrontends"`
	Unreachable  int    `json:"frontendsWithoutEndpoints"` // that are rejected or dropped
	Endpoints    int    `json:"endpoints"`                 // distinct addresses and ports
	Places       int    `json:"endpointElements"`
	PolicyChains int    `json:"policyChains"`
	AffinityMaps int    `json:"affinityMaps"`
	Clients      uint32 `json:"rememberedClients"` // distinct ones of each Service port
	// FullestPercent is how full the fullest affinity map is.
	FullestPercent int `json:"fullestAffinityMapPercent"`
	ForeignRules   int `json:"foreignRules"` // that no kube-nft writes
}

// countedClients is how many clients are counted one by one where the kernel does not count.
const countedClients = 1_000_000

func (i *inspection) tableStatus(ctx context.Context, t *nft.Table) (s tableStatus, err error) {
	s = tableStatus{Family: familyName(t.Family), PolicyChains: t.PolicyChains(), ForeignRules: t.RawRules()}
	s.countServices(t.Services())
	usage, err := i.kernel.AffinityUsage(ctx, t.Family, countedClients)
	if err != nil {
		return s, err
	}
	s.AffinityMaps = len(usage)
	for _, u := range usage {
		if u.Size > 0 {
			s.FullestPercent = max(s.FullestPercent, int(uint64(u.Count)*100/uint64(u.Size)))
		}
	}
	s.Clients, err = i.rememberedClients(ctx, t, usage)
	return s, err
}

// rememberedClients counts the clients of each Service port once: who reaches one by way of
// both lists of endpoints is remembered for each.
func (i *inspection) rememberedClients(ctx context.Context, t *nft.Table, usage map[string]nft.Usage) (n uint32, err error) {
	for _, service := range remembering(t.Services()) {
		if len(service.Memories) == 1 {
			n += usage[service.Memories[0].Map].Count
			continue
		}
		clients, err := i.kernel.Clients(ctx, t, &service)
		if err != nil {
			return 0, err
		}
		distinct := make(map[netip.Addr]bool)
		for _, c := range clients {
			distinct[c.Address] = true
		}
		n += uint32(len(distinct))
	}
	return n, nil
}

func (s *tableStatus) countServices(list []nft.Service) {
	services, ports, endpoints := make(map[string]bool), make(map[string]bool), make(map[netip.AddrPort]bool)
	for _, service := range list {
		services[service.Name.Namespace+"/"+service.Name.Name] = true
		ports[service.Name.String()+service.Protocol.String()] = true
		s.Places += len(service.Cluster) + len(service.Local)
		if len(service.Cluster)+len(service.Local) == 0 {
			s.Unreachable++
		}
		for _, ep := range service.Endpoints() {
			endpoints[ep] = true
		}
		switch service.Kind {
		case nft.KindClusterIP:
			s.ClusterIPs++
		case nft.KindNodePort:
			s.NodePorts++
		default:
			s.ExternalIPs++
		}
	}
	s.Services, s.ServicePorts, s.Frontends, s.Endpoints = len(services), len(ports), len(list), len(endpoints)
}

// A tableLine is one line about all tables.
type tableLine struct {
	head string
	cell func(*tableStatus) string
}

func (l *tableLine) row(tables []tableStatus) []string {
	row := []string{l.head}
	for i := range tables {
		row = append(row, l.cell(&tables[i]))
	}
	return row
}

var tableLines = []tableLine{
	{"Services", func(t *tableStatus) string { return strconv.Itoa(t.Services) }},
	{"Service ports", func(t *tableStatus) string { return strconv.Itoa(t.ServicePorts) }},
	{"Frontends", func(t *tableStatus) string { return strconv.Itoa(t.Frontends) }},
	{"  cluster IPs", func(t *tableStatus) string { return strconv.Itoa(t.ClusterIPs) }},
	{"  external IPs", func(t *tableStatus) string { return strconv.Itoa(t.ExternalIPs) }},
	{"  node ports", func(t *tableStatus) string { return strconv.Itoa(t.NodePorts) }},
	{"  no endpoint", func(t *tableStatus) string { return strconv.Itoa(t.Unreachable) }},
	{"Endpoints", func(t *tableStatus) string { return strconv.Itoa(t.Endpoints) }},
	{"  in all lists", func(t *tableStatus) string { return strconv.Itoa(t.Places) }},
	{"Policy chains", func(t *tableStatus) string { return strconv.Itoa(t.PolicyChains) }},
	{"Affinity maps", func(t *tableStatus) string { return strconv.Itoa(t.AffinityMaps) }},
	{"  clients", func(t *tableStatus) string { return strconv.FormatUint(uint64(t.Clients), 10) }},
	{"  fullest", func(t *tableStatus) string { return fmt.Sprintf("%d%%", t.FullestPercent) }},
	{"Foreign rules", func(t *tableStatus) string { return strconv.Itoa(t.ForeignRules) }},
}
