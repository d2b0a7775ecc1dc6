package migrate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Kind says in what kube-proxy's rules and our tables differ.
type Kind string

// The kinds. Their spelling is part of metrics and of JSON forms.
const (
	OnlyKubeProxy  Kind = "only-kube-proxy" // kube-proxy serves the frontend, and our tables would not
	OnlyKubeNFT    Kind = "only-kube-nft"   // our tables would serve the frontend, and kube-proxy does not
	Endpoints      Kind = "endpoints"       // of clients that the traffic policy Local does not concern
	LocalEndpoints Kind = "local-endpoints" // of the others
	Policy         Kind = "traffic-policy"  // one of the two has the policy Local, the other Cluster
)

// Kinds lists all kinds.
var Kinds = [...]Kind{OnlyKubeProxy, OnlyKubeNFT, Endpoints, LocalEndpoints, Policy}

// A Difference is one of kube-proxy's rules and our tables, at one frontend. Two differences are equal if they are
// the same in all.
type Difference struct {
	Kind     Kind   `json:"kind"`
	Frontend string `json:"frontend"` // with its Service, as far as it is known
	Detail   string `json:"detail"`   // what each of the two has

	At tracker.Frontend `json:"-"`
}

// String names the difference for an operator.
func (d Difference) String() string { return fmt.Sprintf("%s: %s: %s", d.Kind, d.Frontend, d.Detail) }

// Named counts differences and names the first ones.
func Named(list []Difference) string {
	return words.Plural(len(list), "place") + ": " + words.Some(list, shownLost, "; ")
}

// compareLists compares the lists of kube-proxy's frontends, which are sorted and may be there more than once, with
// ours. A frontend without an endpoint counts as none: kube-proxy refuses its connections in other rules. Where rules
// of two modes lie over each other, one of them has to be as ours.
func (c *Comparison) compareLists(theirs []legacy.Frontend, answers *readback.Answers, tables nft.Tables) {
	at := make(map[tracker.Frontend][]legacy.Frontend, len(theirs))
	for i := 0; i < len(theirs); {
		n := i + 1
		for n < len(theirs) && theirs[n].Frontend == theirs[i].Frontend {
			n++
		}
		at[theirs[i].Frontend], i = theirs[i:n:n], n
	}
	views := make(map[nft.Family]*readback.Table, len(tables))
	for f, table := range tables {
		views[f] = readback.New(table)
	}
	for f, name := range answers.Frontends() {
		ours := listsOf(views[f.Family()], f)
		same, list := at[f], []Difference(nil)
		if len(same) == 0 && len(ours.Cluster)+len(ours.Local) > 0 {
			list = []Difference{{Kind: OnlyKubeNFT, Detail: "kube-proxy does not serve it, kube-nft would with " +
				someOf(append(slices.Clone(ours.Cluster), ours.Local...))}}
		}
		for i := range same {
			if list = differences(&ours, &same[i].Lists); len(list) == 0 {
				break
			}
		}
		for _, d := range list {
			d.At, d.Frontend = f, legacy.Frontend{Frontend: f, Service: name.String()}.String()
			c.Differences = append(c.Differences, d)
		}
	}
	slices.SortFunc(c.Differences, func(a, b Difference) int {
		return cmp.Or(a.At.Compare(b.At), strings.Compare(string(a.Kind), string(b.Kind)))
	})
}

// listsOf returns the lists that a table has for a frontend, sorted.
func listsOf(t *readback.Table, f tracker.Frontend) (l legacy.Lists) {
	set, key := layout.VerdictMap(f.NodePort()), layout.FrontendKeyOf(f)
	held := t.FrontendAt(set, key, t.Sets[set].Map[key])
	l.Cluster, l.Local, l.HasLocal = held.Cluster.Sorted(), held.Local.Sorted(), held.HasLocal
	return l
}

// differences compares the lists of a frontend.
func differences(ours, theirs *legacy.Lists) (list []Difference) {
	compare := func(kind Kind, ours, theirs []netip.AddrPort) {
		if !slices.Equal(ours, theirs) {
			list = append(list, Difference{Kind: kind, Detail: detail(ours, theirs)})
		}
	}
	switch {
	case theirs.OneList && ours.HasLocal && len(ours.Local) == 0: // it has endpoints of other nodes, or none
	case theirs.OneList && ours.HasLocal:
		compare(LocalEndpoints, ours.Local, theirs.Cluster)
	case theirs.OneList:
		compare(Endpoints, ours.Cluster, theirs.Cluster)
	case ours.HasLocal != theirs.HasLocal:
		policies := map[bool]string{false: "Cluster", true: "Local"}
		list = append(list, Difference{Kind: Policy, Detail: fmt.Sprintf("kube-proxy has the traffic policy %s, kube-nft %s",
			policies[theirs.HasLocal], policies[ours.HasLocal])})
	default:
		compare(Endpoints, ours.Cluster, theirs.Cluster)
		compare(LocalEndpoints, ours.Local, theirs.Local)
	}
	return list
}

// detail says what each of two sorted lists has that the other lacks.
func detail(ours, theirs []netip.AddrPort) string {
	var parts []string
	lacks := func(who string, list, other []netip.AddrPort) {
		missing := slices.DeleteFunc(slices.Clone(other), func(ep netip.AddrPort) bool {
			_, found := slices.BinarySearchFunc(list, ep, netip.AddrPort.Compare)
			return found
		})
		if len(missing) > 0 {
			parts = append(parts, who+" lacks "+someOf(missing))
		}
	}
	lacks("kube-proxy", theirs, ours)
	lacks("kube-nft", ours, theirs)
	return strings.Join(parts, ", ")
}

// shownEndpoints is how many endpoints a difference names.
const shownEndpoints = 3

// someOf names endpoints; of many, the first ones.
func someOf(list []netip.AddrPort) string {
	slices.SortFunc(list, netip.AddrPort.Compare)
	return words.Some(slices.Compact(list), shownEndpoints, ", ")
}

// A Lasting tells differences that last from those that pass when kube-proxy has synced. Its zero value has seen none.
type Lasting struct {
	// After is how long a difference has to be there, in each look, before it counts.
	After time.Duration

	seen map[Difference]*sighting
}

// A sighting is what is known of a difference.
type sighting struct {
	first time.Time
	looks int
}

// leastLooks is in how many looks a difference has to be seen.
const leastLooks = 3

// Look takes in the differences of a look. It returns those that last, in the same order, and how many others there
// are. touched says at which frontends the wanted state has changed since the last look: kube-proxy is given time for
// these again.
func (l *Lasting) Look(now time.Time, differences []Difference,
	touched func(tracker.Frontend) bool) (lasting []Difference, others int) {
	seen := make(map[Difference]*sighting, len(differences))
	for _, d := range differences {
		s := l.seen[d]
		if s == nil || touched(d.At) {
			s = &sighting{first: now}
		}
		s.looks++
		if seen[d] = s; s.looks >= leastLooks && now.Sub(s.first) >= l.After {
			lasting = append(lasting, d)
		} else {
			others++
		}
	}
	l.seen = seen
	return lasting, others
}
