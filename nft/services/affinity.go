package services

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/affinity"
	"github.com/kube-nft/kube-nft/nft/services/lists"
	"github.com/kube-nft/kube-nft/tracker"
)

// A portAffinity is the session affinity of a Service port, with its chains: at most five. Maps per Service
// port would need no numbers, but 4,000 Services took 7 s: the kernel walks the list of a table's sets for
// each set that it makes and for each rule that names one.
type portAffinity struct {
	affinity.Port
	chains   []*nft.Chain
	balances []lists.Balance // to whose chains its chains go
}

// affinitySettings say how the chains of session affinity look in a table.
func (c *Config) affinitySettings(f nft.Family) *affinity.Settings {
	s := &affinity.Settings{
		Family: f, Masquerade: c.masqueradeInternal(f), MasqueradeAll: c.MasqueradeAll, AllNodePorts: c.AllNodePorts[f],
		Size: c.AffinitySize,
	}
	if pods := c.Pods[f]; !pods.None() {
		s.FromPod = pods.Stmt(false)
	}
	return s
}

// affinityOf returns the session affinity that a Service port asks for, with these endpoint lists.
func (fr *familyRules) affinityOf(p *tracker.ServicePort, cluster, local []netip.AddrPort,
	joint affinity.Joint) affinity.Port {
	if p.Affinity == 0 {
		return affinity.Port{}
	}
	if p.InternalLocal && !p.Settings.LocalFallback && !p.External() {
		cluster, joint.Members[0] = nil, nil // no frontend uses this list
	}
	facts := affinity.Facts{ID: p.ID, Timeout: p.Affinity, Several: p.Several, Cluster: cluster, Local: local,
		Joint: joint}
	return affinity.New(facts, fr.affinityNumbers(p.ID.Namespace))
}

// affinityNumbers is numberOf for the session affinity of a namespace. All its numbers have one affinity map.
func (fr *familyRules) affinityNumbers(namespace string) func(identity string) uint32 {
	const step = layout.AffinityMaps
	return func(identity string) uint32 {
		return fr.freeNumber(identity, max(step, hashOf(identity)/step*step)+hashOf(namespace)%step, step)
	}
}

// adoptedAffinity is the session affinity with the endpoints that the kernel had at start; without any, if
// the kernel had no endpoints.
func (fr *familyRules) adoptedAffinity(p *tracker.ServicePort, cluster, local []netip.AddrPort) affinity.Port {
	if len(cluster)+len(local) == 0 {
		return affinity.Port{}
	}
	sorted := func(list []netip.AddrPort) []netip.AddrPort {
		list = slices.Clone(list)
		slices.SortFunc(list, netip.AddrPort.Compare)
		return slices.Compact(list)
	}
	return fr.affinityOf(p, sorted(cluster), sorted(local), affinity.Joint{})
}

// setAffinity makes the tables have the affinity that a Service port wants. With remove, it takes away what
// they have. adopted is what the kernel had at start, for a port that is new to the ruleset.
func (fr *familyRules) setAffinity(port *portState, adopted affinity.Port, remove bool) {
	have := port.affinity
	port.affinity = portAffinity{}
	if !remove {
		port.affinity.Port = fr.wantedAffinity(port)
	}
	want := &port.affinity
	switch {
	case have.Number == 0 && want.Number == 0:
		return
	case have.Number == 0:
		fr.acquireUpdates(want.Map())
	case want.Number == 0:
		defer fr.releaseUpdates(have.Map())
	}
	if want.Number != 0 {
		fr.declareAffinity(port)
	}
	for _, pick := range want.balances {
		fr.acquireBalance(pick)
	}
	fr.programChains(have.chains, want.chains)
	for _, pick := range have.balances {
		fr.releaseBalance(pick)
	}
	fr.programMembers(have.MembersSet(), want.MembersSet())
	if adopted.Number == 0 {
		fr.recordMembers(have.Compare(&want.Port))
		return
	}
	fr.recordMembers(adopted.Compare(&want.Port))
	for _, group := range want.Groups { // all are new to the cleaner of entries
		fr.affinityGroups[group.Number] = group
	}
}

// wantedAffinity is the affinity that a Service port asks for.
func (fr *familyRules) wantedAffinity(port *portState) affinity.Port {
	p := port.current
	if port.joint == nil {
		return fr.affinityOf(p, p.Endpoints(p.Cluster), p.Endpoints(p.Local), affinity.Joint{})
	}
	joint := port.joint.affinity
	joint.Port = p.TargetPort
	return fr.affinityOf(p, nil, nil, joint)
}

// recordMembers records which endpoints affinity entries may name from the next commit on.
func (fr *familyRules) recordMembers(change affinity.Change) {
	for _, endpoint := range change.Left {
		fr.departures.Begin(endpoint)
	}
	for _, endpoint := range change.Came {
		fr.departures.Return(endpoint)
	}
	for _, group := range change.Groups {
		fr.affinityGroups[group.Number] = group
	}
	for _, number := range change.Freed {
		delete(fr.numbers, number)
	}
}

// declareAffinity adds the chains of a Service port with affinity: one for each policy that its frontends
// have, and those that follow and update entries.
func (fr *familyRules) declareAffinity(port *portState) {
	a := &port.affinity
	a.chains = append(a.FollowChains(fr.Table.Family), a.UpdateChain(fr.affinity))
	declared := make(map[string]bool)
	for _, wanted := range port.frontends {
		p := claim{port: port, kind: wanted.kind}.serve(wanted.Frontend).policy.Open()
		if p.Affinity == 0 || declared[p.ChainName()] {
			continue
		}
		declared[p.ChainName()] = true
		var choices affinity.Choices
		if p.Kind != layout.InternalLocal {
			choices.Cluster = fr.affinityChoice(port, p, false)
		}
		if p.Local > 0 {
			choices.Local = fr.affinityChoice(port, p, true)
		}
		a.chains = append(a.chains, a.PolicyChain(fr.affinity, p, choices, port.sharesCluster(), notLocal(p)))
	}
}

// affinityChoice says which chains choose among the endpoints of a list, and records that they are used.
func (fr *familyRules) affinityChoice(port *portState, p layout.Policy, local bool) (c affinity.Choice) {
	if number := port.listNumber(); number != 0 {
		c.Chain = layout.ListChain(number, local)
		return c
	}
	use := func(nodePort bool) string {
		b := lists.Balance{NodePort: nodePort, Local: local, Capacity: port.listed(local).Capacity(), Hash: port.hash()}
		if a := &port.affinity; !slices.Contains(a.balances, b) {
			a.balances = append(a.balances, b)
		}
		return b.Name()
	}
	mixed := p.Kind == layout.Internal && port.sharesCluster() ||
		p.Kind != layout.Internal && p.Kind != layout.InternalLocal && !p.NodePort && port.sharesExternal()
	if mixed && port.current.NodePort != 0 {
		c.NodePort, c.NodePortChain = port.current.NodePort, use(true)
	}
	c.Chain = use(p.NodePort)
	return c
}

// sharesExternal reports whether one chain serves the node port and the external addresses of a
// Service port with affinity. That takes both, with different ports that tell them apart.
func (p *portState) sharesExternal() bool {
	c := p.current
	return c.NodePort != 0 && c.NodePort != c.Port && len(c.LoadBalancers)+len(c.ExternalIPs) > 0
}

// sharesCluster reports whether the chain of the cluster IP serves other frontends of a Service port
// with affinity, too. For that it must choose among all endpoints, and a node port must have another
// port.
func (p *portState) sharesCluster() bool {
	c := p.current
	return !c.InternalLocal && c.NodePort != c.Port
}

// listed returns the places of the local or of the cluster-wide list.
func (p *portState) listed(local bool) lists.Places {
	if local {
		return p.local
	}
	return p.cluster
}

func (fr *familyRules) programChains(have, want []*nft.Chain) {
	wanted := make(map[string]bool, len(want))
	for _, chain := range want {
		wanted[chain.Name] = true
		fr.PutChain(chain)
	}
	for _, chain := range have {
		if !wanted[chain.Name] {
			fr.RemoveChain(chain.Name)
		}
	}
}

// programMembers writes the elements in which two lists of keys of the set of members differ.
func (fr *familyRules) programMembers(have, want []string) {
	if len(have)+len(want) == 0 {
		return
	}
	gone := make(map[string]bool, len(have))
	for _, key := range have {
		gone[key] = true
	}
	for _, key := range want {
		if !gone[key] {
			fr.Put(layout.MembersSet, key, nft.Element{})
		}
		delete(gone, key)
	}
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		fr.Remove(layout.MembersSet, key)
	}
}

// acquireUpdates counts a Service port whose entries are in an affinity map. The first one of a map makes the
// map, and the first one of all makes the chains that update entries. releaseUpdates removes both with the last.
func (fr *familyRules) acquireUpdates(name string) {
	if len(fr.affinityPorts) == 0 {
		for _, chain := range fr.affinity.SharedChains(srcnatPriority) {
			fr.PutChain(chain)
		}
	}
	if fr.affinityPorts[name]++; fr.affinityPorts[name] == 1 {
		fr.PutSet(fr.affinity.Map(name))
	}
}

func (fr *familyRules) releaseUpdates(name string) {
	if fr.affinityPorts[name]--; fr.affinityPorts[name] > 0 {
		return
	}
	delete(fr.affinityPorts, name)
	fr.RemoveSet(name)
	if len(fr.affinityPorts) == 0 {
		for _, chain := range fr.affinity.SharedChains(srcnatPriority) {
			fr.RemoveChain(chain.Name)
		}
	}
}

// AffinityMaps lists all affinity maps of a family. Each exists while a Service port has entries there. It depends on
// the Config alone, so any goroutine may call it.
func (r *Ruleset) AffinityMaps(f nft.Family) []*nft.Set { return r.config.affinitySettings(f).Maps() }

// AffinityChanges says what has changed since Committed for affinity entries. Ask when the ruleset is not Behind.
func (r *Ruleset) AffinityChanges() (c affinity.Changes) {
	for _, f := range r.config.Families {
		family := r.families[f]
		for _, number := range slices.Sorted(maps.Keys(family.affinityGroups)) {
			c.Groups = append(c.Groups, family.affinityGroups[number])
		}
		c.Departed = append(c.Departed, family.departures.Fresh()...)
	}
	return c
}

// EndDepartures takes endpoints out of the sets of departed endpoints: their affinity entries are gone, and so
// are packets that may have followed one.
func (r *Ruleset) EndDepartures(ended []affinity.Departure) {
	for _, d := range ended {
		r.families[d.Family].departures.End(d)
	}
}

// A KnownClient is a client whose endpoint is known from another proxy: its connections to the Service port that has
// the frontend go to the endpoint.
type KnownClient struct {
	Frontend tracker.Frontend
	Client   netip.Addr
	Endpoint netip.AddrPort
}

// EntriesOfClients returns the operations that make affinity entries of these clients, with the full timeout, and of
// how many clients. A client counts if the frontend's Service port has session affinity and its endpoint. A table
// that has affinity maps already keeps its own entries: have are the tables in the kernel.
func (r *Ruleset) EntriesOfClients(knownClients []KnownClient, have nft.Tables) (ops []nft.Op, used int) {
	for _, f := range r.config.Families {
		table := have[f]
		exists := func(set *nft.Set) bool { return table.Sets[set.Name] != nil }
		if table != nil && slices.ContainsFunc(r.AffinityMaps(f), exists) {
			continue
		}
		var known []affinity.Known
		for i := range knownClients {
			if k := r.families[f].knownFrom(&knownClients[i]); len(k.Groups) > 0 {
				known = append(known, k)
			}
		}
		made, n := affinity.Entries(f, r.AffinityMaps(f), known)
		ops, used = append(ops, made...), used+n
	}
	return ops, used
}

// knownFrom returns a client of kube-proxy with the groups that get an entry: one of the cluster-wide list and
// one of the local list. It returns no group if the Service port does not have the client's endpoint.
func (fr *familyRules) knownFrom(client *KnownClient) (known affinity.Known) {
	state := fr.frontends[client.Frontend]
	if state == nil || state.claims.first() == nil || client.Client.Is4() != (fr.Table.Family == nft.IP) {
		return known
	}
	known.Client, known.Endpoint = client.Client, client.Endpoint.Addr()
	a := &state.claims.first().port.affinity
	for _, local := range []bool{false, true} {
		if g := a.Find(local, client.Endpoint.Port()); g.Has(client.Endpoint.Addr()) {
			known.Groups = append(known.Groups, g)
		}
	}
	return known
}
