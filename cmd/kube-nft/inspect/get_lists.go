package inspect

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// A subject is the beginning of each row: a port of a Service.
type subject struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"`
	Family    string `json:"family"`
}

func subjectOf(t *readback.Table, s *readback.Frontend) subject {
	return subject{s.Name.Namespace, s.Name.Name, s.Name.Port, t.Family.String()}
}

func (s *subject) text() string {
	return nft.Visible(layout.PortName{Namespace: s.Namespace, Name: s.Name, Port: s.Port}.String())
}

// frontend is a frontend for people. A node port does not show its family.
func (s *subject) frontend(text string) string {
	if strings.HasPrefix(text, anyAddress) {
		return text + " (" + s.Family + ")"
	}
	return text
}

// anyAddress replaces the address of a node port.
const anyAddress = "*:"

// frontendText is a frontend as address:port/protocol; a node port as *:port/protocol.
func frontendText(f tracker.Frontend) string {
	if f.NodePort() {
		return anyAddress + strconv.Itoa(int(f.Port)) + "/" + f.Protocol.String()
	}
	return f.String()
}

// A serviceRow is one frontend.
type serviceRow struct {
	subject
	Frontend        string `json:"frontend"`
	Kind            string `json:"kind"`
	Policy          string `json:"policy"`
	Verdict         string `json:"verdict"`             // in nft's words
	Algorithm       string `json:"algorithm,omitempty"` // maglev; without it, chance chooses
	Hash            string `json:"hash,omitempty"`      // of maglev: source-ip-port or source-ip
	Weighted        bool   `json:"weighted,omitempty"`
	Endpoints       int    `json:"endpoints"`
	LocalEndpoints  *int   `json:"localEndpoints,omitempty"` // nil: no list for a policy Local
	AffinitySeconds int    `json:"affinitySeconds,omitempty"`
	// Annotations are what the Service port was asked for by annotations, as "key: value"; options those that Policy does
	// not tell in its own words.
	Annotations []string `json:"annotations,omitempty"`
	options     []string
}

var serviceColumns = []column[serviceRow]{
	{"SERVICE", func(r *serviceRow) string { return r.text() }, false},
	{"FRONTEND", func(r *serviceRow) string { return r.frontend(r.Frontend) }, false},
	{"KIND", func(r *serviceRow) string { return r.Kind }, false},
	{"EP", func(r *serviceRow) string { return strconv.Itoa(r.Endpoints) }, false},
	{"LOCAL", func(r *serviceRow) string { return orDash(r.LocalEndpoints) }, false},
	{"POLICY", func(r *serviceRow) string {
		words := r.Policy
		for _, annotation := range r.options {
			words += ", " + strings.TrimPrefix(annotation, tracker.AnnotationPrefix)
		}
		return words
	}, false},
	{"AFFINITY", func(r *serviceRow) string { return affinityText(r.AffinitySeconds) }, true},
	{"FAMILY", func(r *serviceRow) string { return r.Family }, true},
	{"VERDICT", func(r *serviceRow) string { return r.Verdict }, true},
}

// affinityText is a timeout of session affinity.
func affinityText(seconds int) string {
	if seconds == 0 {
		return "-"
	}
	return (time.Duration(seconds) * time.Second).String()
}

func getServices(cmd *cobra.Command, s *selection, i *inspection) error {
	rows := []serviceRow{}
	for _, table := range s.families(i.tables) {
		for _, service := range s.services(table) {
			row := serviceRow{
				subject: subjectOf(table, &service), Frontend: frontendText(service.Frontend), Kind: service.Kind,
				Policy: service.Policy, Verdict: service.Verdict.String(), Hash: service.Hash.String(),
				Weighted: service.Weighted(), Endpoints: service.Endpoints().Len(),
				AffinitySeconds: int(service.Affinity / time.Second), Annotations: service.Annotations(),
				options: service.Options,
			}
			if service.Hash != layout.NoHash {
				row.Algorithm = "maglev"
			}
			if service.HasLocal {
				row.LocalEndpoints = new(service.Local.Len())
			}
			rows = append(rows, row)
		}
	}
	return writeList(cmd, s, "Frontend", serviceColumns, rows)
}

// An endpointRow is one endpoint of one list of a frontend.
type endpointRow struct {
	subject
	Frontend string `json:"frontend"`
	List     string `json:"list"`  // cluster or local
	Index    int    `json:"index"` // in the list
	Endpoint string `json:"endpoint"`
	// Share is the endpoint's part of new connections, which follows from its Places in the list. Both
	// are missing where each endpoint has one place.
	Share  float64 `json:"share,omitempty"`
	Places int     `json:"places,omitempty"`
	// Connections is missing if the kernel does not count them.
	Connections *uint64 `json:"connections,omitempty"`
}

var endpointColumns = []column[endpointRow]{
	{"SERVICE", func(r *endpointRow) string { return r.text() }, false},
	{"FRONTEND", func(r *endpointRow) string { return r.frontend(r.Frontend) }, false},
	{"LIST", func(r *endpointRow) string { return r.List }, false},
	{"INDEX", func(r *endpointRow) string { return strconv.Itoa(r.Index) }, false},
	{"ENDPOINT", func(r *endpointRow) string { return r.Endpoint }, false},
	{shareHead, func(r *endpointRow) string {
		if r.Places == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f%%", 100*r.Share)
	}, false},
	{connectionsHead, func(r *endpointRow) string { return orDash(r.Connections) }, false},
	{"FAMILY", func(r *endpointRow) string { return r.Family }, true},
}

// Heads of columns that are printed if any list has weights or is one of slots, and if any row has a count, but not
// while rows are watched.
const (
	shareHead       = "SHARE"
	connectionsHead = "CONNECTIONS"
)

// orDash is a number that may be missing.
func orDash[T any](n *T) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// maxEndpoints is how many endpoints get lists: they take half a gigabyte. A Service of 10,000 ports can have
// 20,000,000.
const maxEndpoints = 1_000_000

func getEndpoints(cmd *cobra.Command, s *selection, i *inspection) error {
	all, frontends := 0, make(map[*readback.Table][]readback.Frontend)
	for _, table := range s.families(i.tables) {
		frontends[table] = s.services(table)
		for _, service := range frontends[table] {
			all += service.Cluster.Len() + service.Local.Len()
		}
	}
	if all > maxEndpoints {
		return fmt.Errorf("the lists have %d endpoints, and get lists %d at most: select a namespace, a Service or "+
			"one of its ports, as in NAMESPACE/NAME:PORT", all, maxEndpoints)
	}
	type key struct { // of an endpoint of a list of a frontend
		tracker.Frontend
		endpoint netip.AddrPort
		local    bool
	}
	rows, counted := []endpointRow{}, false
	for _, table := range s.families(i.tables) {
		list, err := readback.ReadConnections(cmd.Context(), i.kernel, table.Family, true)
		if err != nil {
			return err
		}
		counts := make(map[key]uint64, len(list))
		for _, c := range list {
			counts[key{c.Frontend, c.Endpoint, c.Local}] = c.Count
		}
		counted = counted || len(counts) > 0
		for _, service := range frontends[table] {
			for _, local := range []bool{false, true} {
				endpoints := service.Cluster
				if local {
					endpoints = service.Local
				}
				places := endpoints.AllPlaces()
				for index, ep := range endpoints.All() {
					row := endpointRow{subject: subjectOf(table, &service), Frontend: frontendText(service.Frontend),
						List: listName(local), Index: index, Endpoint: ep.String()}
					if endpoints.Places != nil {
						row.Places = endpoints.Places[index]
						row.Share = float64(row.Places) / float64(places)
					}
					if n, ok := counts[key{service.Frontend, ep, local}]; ok {
						row.Connections = &n
					}
					rows = append(rows, row)
				}
			}
		}
	}
	var without []string
	if !slices.ContainsFunc(rows, func(r endpointRow) bool { return r.Places > 0 }) {
		without = append(without, shareHead)
	}
	if !counted || s.watch {
		without = append(without, connectionsHead)
	}
	return writeList(cmd, s, "Endpoint", endpointColumns, rows, without...)
}

// listName is the name of a list of endpoints.
func listName(local bool) string {
	if local {
		return "local"
	}
	return "cluster"
}

// An affinityRow is one entry of an affinity map: a client and its endpoint. An IPv6 client is shown
// without bits 64 to 95, which its entry does not have.
type affinityRow struct {
	subject
	Client           string  `json:"client"`
	List             string  `json:"list"` // cluster or local: the list of the endpoint's choice
	Endpoint         string  `json:"endpoint"`
	RemainingSeconds float64 `json:"remainingSeconds"`
}

var affinityColumns = []column[affinityRow]{
	{"SERVICE", func(r *affinityRow) string { return r.text() }, false},
	{"CLIENT", func(r *affinityRow) string { return r.Client }, false},
	{"LIST", func(r *affinityRow) string { return r.List }, false},
	{"ENDPOINT", func(r *affinityRow) string { return r.Endpoint }, false},
	{remainingHead, func(r *affinityRow) string {
		return time.Duration(r.RemainingSeconds * float64(time.Second)).Round(time.Second).String()
	}, false},
	{"FAMILY", func(r *affinityRow) string { return r.Family }, true},
}

// remainingHead is the head of a column that changes all the time: it is not printed while rows are watched.
const remainingHead = "REMAINING"

func getAffinity(cmd *cobra.Command, s *selection, i *inspection) error {
	rows := []affinityRow{}
	for _, table := range s.families(i.tables) {
		entries, err := readback.ReadAffinityEntries(cmd.Context(), i.kernel, table)
		if err != nil {
			return err
		}
		for _, service := range withAffinity(s.services(table)) {
			for _, c := range entries.Clients(&service) {
				rows = append(rows, affinityRow{subjectOf(table, &service), c.Address.String(), listName(c.Local),
					c.Endpoint.String(), c.Expires.Seconds()})
			}
		}
	}
	if s.watch {
		return writeList(cmd, s, "AffinityEntry", affinityColumns, rows, remainingHead)
	}
	return writeList(cmd, s, "AffinityEntry", affinityColumns, rows)
}

// withAffinity lists one frontend of each Service port with session affinity: all its frontends
// share its entries.
func withAffinity(frontends []readback.Frontend) []readback.Frontend {
	seen := make(map[uint32]bool)
	return slices.DeleteFunc(frontends, func(s readback.Frontend) bool {
		if len(s.AffinityGroups) == 0 {
			return true
		}
		first := s.AffinityGroups[0].Number
		shared := seen[first]
		seen[first] = true
		return shared
	})
}
