package services

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/maglev"
	"github.com/kube-nft/kube-nft/tracker"
)

// A slotBudget says which annotations of Service ports this node follows: it has no more slots than it may, and some kernels
// lack what an annotation needs.
type slotBudget struct {
	slots    maglev.Budget[tracker.PortID, *tracker.ServicePort]
	config   *Config
	standing map[unmetKey]bool
	fresh    []Unmet // not reported yet
}

func newSlotBudget(config *Config) slotBudget {
	b := slotBudget{config: config, standing: make(map[unmetKey]bool)}
	b.slots.Order, b.slots.Slots = tracker.ByAge, config.MaglevSlots
	return b
}

// limits say which annotations of a Service port this node does not follow.
type limits struct{ withoutSlots, withoutHash, withoutPing bool }

func (b *slotBudget) limitsOf(p *tracker.ServicePort) limits {
	return limits{
		withoutSlots: b.slots.Refuses(p.ID),
		withoutHash:  p.Settings.Maglev && b.config.Lacks.Hash != nil,
		withoutPing:  p.Settings.Ping && b.config.Lacks.Redirect != nil,
	}
}

// of is p as it is served.
func (l limits) of(p *tracker.ServicePort) *tracker.ServicePort {
	if !l.withoutPing {
		return p
	}
	q := *p
	q.Settings.Ping = false
	return &q
}

// placesEach bounds the places of weights for each endpoint.
func (l limits) placesEach(n int) int {
	if l.withoutSlots {
		return maglev.FewPlacesEach
	}
	return maglev.PlacesEach(n)
}

// slotsOf is how many elements the slot tables of a Service port take on this node, or a few more, and the places of weights if
// they are many.
func (b *slotBudget) slotsOf(p *tracker.ServicePort) int {
	hashed := p.Settings.Maglev && b.config.Lacks.Hash == nil
	if !hashed && p.ClusterWeights == nil && p.LocalWeights == nil {
		return 0
	}
	cluster, local := slotsOfList(hashed, p.Cluster, p.ClusterWeights), 0
	if p.InternalLocal || p.ExternalLocal {
		local = slotsOfList(hashed, p.Local, p.LocalWeights)
	}
	if cluster+local == 0 {
		return 0
	}
	frontends := 1 + len(p.LoadBalancers) + len(p.ExternalIPs)
	if p.NodePort != 0 {
		frontends++
	}
	slots := frontends * (cluster + local)
	if slots >= manySlots && (frontends >= manyFrontends || hashed && frontends > 1) {
		slots = cluster + local
	}
	return slots
}

func slotsOfList(hashed bool, list []netip.AddrPort, weights []uint16) (slots int) {
	switch {
	case len(list) == 0:
		return 0
	case hashed:
		return maglev.Size(len(list))
	case weights == nil:
		return 0
	}
	for _, places := range maglev.Places(weights, maglev.PlacesEach(len(weights))) {
		slots += places
	}
	if slots <= maglev.FewPlacesEach*len(list) { // it has them in any case
		return 0
	}
	return slots
}

// take takes in who wants slot tables, and returns the Service ports besides those of delta for which it
// has changed whether they get them. causes are the ports of delta that want more or fewer slots than before.
func (b *slotBudget) take(delta *tracker.Delta) (others []*tracker.ServicePort, causes []tracker.PortID) {
	request := func(id tracker.PortID, p *tracker.ServicePort, slots int) {
		if b.slots.Request(id, id.Namespace, p, slots) {
			causes = append(causes, id)
		}
	}
	for id := range delta.Removed {
		request(id, nil, 0)
		b.noteLimits(id, nil)
	}
	for id, p := range delta.Changed {
		slots := 0
		if slices.Contains(b.config.Families, nft.Family(id.Family)) {
			slots = b.slotsOf(p)
		}
		request(id, p, slots)
	}
	b.slots.Settle(func(p *tracker.ServicePort, _ bool) {
		if _, ok := delta.Changed[p.ID]; !ok {
			others = append(others, p)
			b.noteLimits(p.ID, p)
		}
	})
	for id, p := range delta.Changed {
		b.noteLimits(id, p)
	}
	slices.SortFunc(others, func(p, q *tracker.ServicePort) int { return p.ID.Compare(q.ID) })
	return others, causes
}

// noteLimits notes which annotations of a Service port this node does not follow, why, and what helps; nil is a port that is
// no more.
func (b *slotBudget) noteLimits(id tracker.PortID, p *tracker.ServicePort) {
	var l limits
	if p != nil {
		l = b.limitsOf(p)
	}
	if l == (limits{}) && len(b.standing) == 0 {
		return
	}
	hashed := p != nil && p.Settings.Maglev
	short := func(what, instead string) string {
		return fmt.Sprintf("%d %s for port %s are more than are left of the %d that all Services of this node may have (--maglev-slots), "+
			"of which no namespace gets more than others while they ask for more; %s", b.slots.Requested(id), what, portAndFamily(id), b.config.MaglevSlots, instead)
	}
	const byChance = "endpoints are chosen by chance on this node"
	b.note(id, weight, l.withoutSlots && !hashed, func() string {
		return short("places", "shares of endpoints are off by up to a quarter of an equal one")
	})
	b.note(id, lbAlgorithm, hashed && (l.withoutSlots || l.withoutHash), func() string {
		if l.withoutHash {
			return fmt.Sprintf("%s: %v", byChance, b.config.Lacks.Hash)
		}
		return short("slots", byChance)
	})
	b.note(id, ping, l.withoutPing, func() string {
		return fmt.Sprintf("its addresses do not answer on this node: %v", b.config.Lacks.Redirect)
	})
}

func portAndFamily(id tracker.PortID) string {
	if id.Port == "" {
		return fmt.Sprintf("(%s, %s)", id.Protocol, id.Family)
	}
	return fmt.Sprintf("%s (%s)", id.Port, id.Family)
}

// The annotations that a node may not be able to follow.
const (
	lbAlgorithm = tracker.AnnotationPrefix + "lb-algorithm"
	ping        = tracker.AnnotationPrefix + "ping"
	weight      = tracker.AnnotationPrefix + "weight"
)

// An unmetKey is an annotation of a Service port that this node does not follow.
type unmetKey struct {
	tracker.PortID
	annotation string
}

// note notes whether this node does not follow an annotation.
func (b *slotBudget) note(id tracker.PortID, annotation string, unmet bool, reason func() string) {
	key := unmetKey{id, annotation}
	switch {
	case !unmet && len(b.standing) > 0:
		delete(b.standing, key)
	case unmet && !b.standing[key]:
		b.standing[key] = true
		b.fresh = append(b.fresh, Unmet{ID: id, Annotation: annotation, Reason: reason()})
	}
}

// An Unmet is an annotation of a Service port that this node does not follow although its value is valid. The
// Service is served as if it had no such annotation.
type Unmet struct {
	ID                 tracker.PortID
	Annotation, Reason string
}

// Refusal is an Unmet as it is told to people.
func (u Unmet) Refusal() *tracker.Refusal {
	field := "metadata.annotations[" + u.Annotation + "]"
	if u.Annotation == weight {
		field += " of its EndpointSlices"
	}
	return &tracker.Refusal{Kind: "Service", Namespace: u.ID.Namespace, Name: u.ID.Service, Field: field, Reason: u.Reason}
}

// unmet is Ruleset.Unmet.
func (b *slotBudget) unmet() (fresh []Unmet, standing int) {
	for _, u := range b.fresh {
		if b.standing[unmetKey{u.ID, u.Annotation}] { // not only in between
			fresh = append(fresh, u)
		}
	}
	b.fresh = nil
	slices.SortFunc(fresh, func(a, b Unmet) int { return cmp.Or(a.ID.Compare(b.ID), cmp.Compare(a.Annotation, b.Annotation)) })
	return fresh, len(b.standing)
}
