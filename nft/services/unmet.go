package services

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/lists"
	"github.com/kube-nft/kube-nft/tracker"
)

// Unmet annotations are those of Service ports that this node does not follow: the quota of the namespace leaves
// nothing for what they take, or the kernel lacks something.
type unmetAnnotations struct {
	config   *Config
	standing map[unmetKey]bool
	fresh    []Unmet // not reported yet
}

// limits say which annotations of a Service port this node does not follow.
type limits struct{ withoutSlots, withoutHash, withoutPing, unweighted bool }

func (u *unmetAnnotations) limitsOf(p *tracker.ServicePort) limits {
	return limits{
		withoutSlots: p.WithoutSlots && (p.Settings.Maglev || p.Weighted()),
		withoutHash:  p.Settings.Maglev && u.config.Lacks.Hash != nil,
		withoutPing:  p.Settings.Ping && u.config.Lacks.Redirect != nil,
		unweighted:   p.Unweighted,
	}
}

// of is p as it is served.
func (l limits) of(p *tracker.ServicePort) *tracker.ServicePort {
	if !l.withoutPing {
		return p
	}
	return p.With(func(spec *tracker.PortSpec) { spec.Settings.Ping = false })
}

// hash is what the endpoints of p follow from.
func (l limits) hash(p *tracker.ServicePort) layout.Hash {
	switch {
	case !p.Settings.Maglev || l.withoutSlots || l.withoutHash:
		return layout.NoHash
	case p.Settings.HashAddress:
		return layout.HashAddress
	}
	return layout.HashAddressPort
}

// method is how an endpoint of p is chosen.
func (l limits) method(p *tracker.ServicePort) lists.Method {
	return lists.Method{Hash: l.hash(p), Rough: l.withoutSlots}
}

// updateLimits records which annotations of a Service port this node does not follow, why, and what helps. A nil port
// has been removed.
func (u *unmetAnnotations) updateLimits(id tracker.PortID, p *tracker.ServicePort) {
	var l limits
	if p != nil {
		l = u.limitsOf(p)
	}
	if l == (limits{}) && len(u.standing) == 0 {
		return
	}
	hashed := p != nil && p.Settings.Maglev
	short := func(instead string) string {
		return fmt.Sprintf("port %s needs more elements for this annotation than the quota of the namespace "+
			"(--namespace-quota) leaves; %s", portAndFamily(id), instead)
	}
	const byChance = "this node chooses endpoints at random"
	u.set(id, weight, l.unweighted || l.withoutSlots && !hashed, func() string {
		if l.unweighted {
			return fmt.Sprintf("port %s has more than %d endpoints; each gets an equal share", portAndFamily(id),
				tracker.MostWeighted)
		}
		return short("this node rounds the share of each endpoint to a quarter of an equal share")
	})
	u.set(id, lbAlgorithm, hashed && (l.withoutSlots || l.withoutHash), func() string {
		if l.withoutHash {
			return fmt.Sprintf("%s: %v", byChance, u.config.Lacks.Hash)
		}
		return short(byChance)
	})
	u.set(id, ping, l.withoutPing, func() string {
		return fmt.Sprintf("its addresses do not respond to ping on this node: %v", u.config.Lacks.Redirect)
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

// set records whether this node does not follow an annotation.
func (u *unmetAnnotations) set(id tracker.PortID, annotation string, unmet bool, reason func() string) {
	key := unmetKey{id, annotation}
	switch {
	case !unmet && len(u.standing) > 0:
		delete(u.standing, key)
	case unmet && !u.standing[key]:
		u.standing[key] = true
		u.fresh = append(u.fresh, Unmet{ID: id, Annotation: annotation, Reason: reason()})
	}
}

// An Unmet is an annotation of a Service port that this node does not follow although its value is valid. The
// Service is served as if it had no such annotation.
type Unmet struct {
	ID                 tracker.PortID
	Annotation, Reason string
}

func (u Unmet) Error() string {
	field := "metadata.annotations[" + u.Annotation + "]"
	if u.Annotation == weight {
		field += " of its EndpointSlices"
	}
	return fmt.Sprintf("Service %s/%s: %s: %s", u.ID.Namespace, u.ID.Service, field, u.Reason)
}

// Unmet returns the annotations that this node has ceased to follow since the last call. standing is
// the number of all annotations that it does not follow.
func (r *Ruleset) Unmet() (fresh []Unmet, standing int) {
	u := &r.unmet
	for _, f := range u.fresh {
		if u.standing[unmetKey{f.ID, f.Annotation}] { // not only in between
			fresh = append(fresh, f)
		}
	}
	u.fresh = nil
	slices.SortFunc(fresh, func(a, b Unmet) int {
		return cmp.Or(a.ID.Compare(b.ID), cmp.Compare(a.Annotation, b.Annotation))
	})
	return fresh, len(u.standing)
}
