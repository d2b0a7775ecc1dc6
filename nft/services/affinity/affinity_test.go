package affinity

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// numbers gives numbers in the order in which identities come: 1, 2, ...
func numbers() func(string) uint32 {
	have := make(map[string]uint32)
	return func(identity string) uint32 {
		if have[identity] == 0 {
			have[identity] = uint32(len(have) + 1)
		}
		return have[identity]
	}
}

// endpoints reads "1:80 2:80" as 10.0.0.1:80 and 10.0.0.2:80.
func endpoints(text string) (list []netip.AddrPort) {
	for _, word := range strings.Fields(text) {
		list = append(list, netip.MustParseAddrPort("10.0.0."+word))
	}
	return list
}

// TestCompare: which groups a Service port has, with their members, and which change, when its lists do. The group of
// the cluster-wide list with port 80 has the number 4, that of the local list 5; of port 90, 6 and 7.
func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		name, before, local, after, afterLocal string
		timeout                                time.Duration
		joint                                  bool
		members, changed, freed                string
	}{
		{name: "nothing", before: "1:80 2:80", after: "1:80 2:80", members: "4:2"},
		{name: "new", after: "1:80", members: "4:1", changed: "4"},
		{name: "gone", before: "1:80 2:80", changed: "gone 4", freed: "2 1"},
		{name: "an endpoint leaves", before: "1:80 2:80", after: "1:80", members: "4:1"},
		{name: "another timeout", before: "1:80", after: "1:80", timeout: time.Minute, members: "4:1", changed: "4"},
		{name: "the port changes", before: "1:80 2:80", after: "3:90", members: "6:1", changed: "6 gone 4", freed: "2"},
		{name: "the port of one endpoint changes", before: "1:80 2:80", after: "1:80 2:90", members: "4:1 6:1",
			changed: "6"},
		{name: "the local list alone is used", before: "1:80 2:80", afterLocal: "1:80", members: "5:1", changed: "5 gone 4"},
		{name: "it leaves the local list", before: "1:80 2:80", local: "2:80", after: "1:80", members: "4:1",
			changed: "gone 5"},
		{name: "the list is shared", before: "1:80 2:80", joint: true, changed: "4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			facts := Facts{ID: tracker.PortID{Service: "web", Family: tracker.IPv4}, Timeout: time.Hour}
			fixed := func(text string) uint32 {
				return map[string]uint32{identity(facts.ID): 1, groupIdentity(facts.ID, 80): 2,
					groupIdentity(facts.ID, 90): 3}[text]
			}
			side := func(have Port, cluster, local string) Port {
				if cluster+local == "" && !tt.joint {
					return Port{}
				}
				facts.Cluster, facts.Local = endpoints(cluster), endpoints(local)
				return have.Next(facts, fixed)
			}
			p := side(Port{}, tt.before, tt.local)
			if tt.timeout != 0 {
				facts.Timeout = tt.timeout
			}
			if tt.joint {
				facts.Joint = Joint{Number: 9, Port: 80, Has: [2]bool{true, false}}
			}
			q := side(p, tt.after, tt.afterLocal)
			c := p.Compare(&q)
			var members, groups, freed []string
			for _, l := range q.Lists {
				members = append(members, fmt.Sprintf("%d:%d", l.Number, len(l.Members)))
			}
			for _, g := range c.Groups {
				groups = append(groups, fmt.Sprintf("%s%d", map[bool]string{true: "gone "}[g.List == 0], g.Number))
			}
			for _, n := range c.Freed {
				freed = append(freed, fmt.Sprint(n))
			}
			got := []string{strings.Join(members, " "), strings.Join(groups, " "), strings.Join(freed, " ")}
			if diff := cmp.Diff([]string{tt.members, tt.changed, tt.freed}, got); diff != "" {
				t.Errorf("members, groups, freed (-want +got):\n%s", diff)
			}
			if equal := p.EqualGroups(&q); equal != (tt.changed == "") {
				t.Errorf("equal groups: %t", equal)
			}
		})
	}
}

// tables is what Wrong asks for: groups and their lists.
func tables(timeout time.Duration, members map[uint32][]netip.Addr) func(uint32) (Group, List) {
	return func(n uint32) (Group, List) {
		if members[n] == nil {
			return Group{}, List{}
		}
		return Group{Number: n, Timeout: timeout}, List{Members: members[n]}
	}
}

// TestFreshGroup: when a Service port gets another list, clients keep endpoints that are in it.
func TestFreshGroup(t *testing.T) {
	for _, f := range nft.Families {
		kept, moved, a, b := addr(f, 1), addr(f, 2), addr(f, 3), addr(f, 4)
		group := tables(time.Hour, map[uint32][]netip.Addr{16: {a, b}, 17: {a}})
		life := &nft.Life{Timeout: time.Hour, Expires: time.Minute}
		held := map[string]nft.Element{
			nft.NumberedKey(f, 16, kept):  {Data: nft.AddrKey(a), Life: life},
			nft.NumberedKey(f, 16, moved): {Data: nft.AddrKey(b), Life: life},
		}
		changes, stale := Wrong(f, held, 10, group, nil, map[uint32]bool{17: true})
		want := EntryChange{Key: nft.NumberedKey(f, 17, kept), Data: nft.AddrKey(a), New: true}
		if len(changes) != 1 || stale != 0 || changes[0].Now == nil || changes[0].Now.Expires != time.Minute {
			t.Fatalf("%s: changes %+v, stale %v", f, changes, stale)
		}
		if changes[0].Now = nil; changes[0] != want {
			t.Errorf("%s: got %+v, want %+v", f, changes[0], want)
		}
		if changes, _ := Wrong(f, held, 10, group, nil, nil); len(changes) != 0 {
			t.Errorf("%s: %+v for a group that is not fresh", f, changes)
		}
	}
}

// TestWrong: entries that name no member go, those of a group with a new timeout get it, all others stay.
func TestWrong(t *testing.T) {
	for _, f := range nft.Families {
		client, a, b, stranger := addr(f, 1), addr(f, 2), addr(f, 3), addr(f, 4)
		group := tables(time.Hour, map[uint32][]netip.Addr{16: {a, b}})
		entry := func(ep netip.Addr, timeout, expires time.Duration) nft.Element {
			return nft.Element{Data: nft.AddrKey(ep), Life: &nft.Life{Timeout: timeout, Expires: expires}}
		}
		const remove = "add 10ms 10ms, destroy 10ms 10ms"
		for _, tt := range []struct {
			name   string
			number uint32
			entry  nft.Element
			renew  bool
			want   string
			stale  int
		}{
			{"a member", 16, entry(a, time.Hour, time.Minute), false, "", 0},
			{"no member", 16, entry(stranger, time.Hour, time.Minute), false, remove, 1},
			{"a number that no Service port uses", 99, entry(a, time.Hour, time.Minute), false, remove, 1},
			{"another timeout that is not new", 16, entry(a, 3*time.Hour, 2*time.Hour), false, "", 0},
			{"a shorter timeout", 16, entry(a, 3*time.Hour, 2*time.Hour), true, "add 1h0m0s 1h0m0s", 0},
			{"a longer timeout", 16, entry(a, time.Minute, time.Second), true, "add 1h0m0s 1s", 0},
			{"the timeout it has", 16, entry(a, time.Hour, time.Second), true, "", 0},
			{"a refreshed entry, of which the kernel tells no rest", 16, entry(a, time.Minute, 0), true, "add 1h0m0s 1m0s", 0},
		} {
			held := map[string]nft.Element{nft.NumberedKey(f, tt.number, client): tt.entry}
			changes, stale := Wrong(f, held, 10, group, map[uint32]bool{16: tt.renew}, nil)
			var got []string
			for _, op := range Ops(f, &nft.Set{Name: "affinity-0"}, changes) {
				for _, e := range op.Elements {
					words := op.Verb.String()
					if e.Life != nil {
						words += fmt.Sprintf(" %v %v", e.Life.Timeout, e.Life.Expires)
					}
					got = append(got, words)
				}
			}
			if strings.Join(got, ", ") != tt.want || stale != tt.stale {
				t.Errorf("%s: %s: %v, %d stale entries, want %s, %d", f, tt.name, got, stale, tt.want, tt.stale)
			}
		}
	}
}

func addr(f nft.Family, last byte) netip.Addr {
	if f == nft.IP6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: last})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, last})
}

// TestUpdateChain: the rules for one group, for groups of two ports, and for one port in both lists.
func TestUpdateChain(t *testing.T) {
	id := tracker.PortID{Service: "web", Family: tracker.IPv4, Protocol: tracker.TCP}
	for _, tt := range []struct {
		name, cluster, local string
		want                 []string
	}{
		{"one group", "1:80", "", []string{
			"not in members forget drop",
			"update",
		}},
		{"two ports", "1:80 2:90", "", []string{
			"th dport 80 not in members forget drop",
			"th dport 80 update",
			"th dport 90 not in members forget drop",
			"th dport 90 update",
		}},
		{"both lists", "1:80", "1:80", []string{
			"not in members not in members forget forget drop",
			"members update",
			"members update",
		}},
	} {
		p := new(Port).Next(Facts{ID: id, Timeout: time.Hour, Cluster: endpoints(tt.cluster), Local: endpoints(tt.local)},
			numbers())
		var got []string
		for _, rule := range p.UpdateChain(&Settings{Family: nft.IP}).Rules {
			var words []string
			for _, stmt := range rule {
				switch s := stmt.(type) {
				case nft.PortIs:
					words = append(words, fmt.Sprintf("th dport %d", s.Port))
				case nft.InSet:
					words = append(words, map[bool]string{true: "not in "}[s.Not]+s.Set)
				case nft.Forget:
					words = append(words, "forget")
				case nft.Update:
					words = append(words, "update")
				case nft.Verdict:
					words = append(words, s.String())
				}
			}
			got = append(got, strings.Join(words, " "))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestNamespacesTakeTurns: the one entry of a namespace that has to change is among the first, however many there are
// of another namespace, and of Service ports that have gone.
func TestNamespacesTakeTurns(t *testing.T) {
	client, held := addr(nft.IP, 1), make(map[string]nft.Element)
	for number, n := range map[uint32]int{2: 30, 4: 30, 6: 1, 8: 30} {
		for range n {
			client = client.Next()
			held[nft.NumberedKey(nft.IP, number, client)] = nft.Element{Data: nft.AddrKey(addr(nft.IP, 2)),
				Life: &nft.Life{Timeout: time.Hour}}
		}
	}
	changes, stale := Wrong(nft.IP, held, len(held), func(n uint32) (Group, List) {
		return Group{Namespace: map[uint32]string{2: "shop", 4: "shop", 6: "bank"}[n]}, List{}
	}, nil, nil)
	place := slices.IndexFunc(changes, func(c EntryChange) bool { return c.Left.Number == 6 })
	if stale != len(held) || len(changes) != len(held) || place < 0 || place > 2 {
		t.Errorf("%d stale entries, %d changes, that of the small namespace at place %d", stale, len(changes), place)
	}
}

// TestSharesOfFullMap: the namespace with the most entries gives up its own, of its largest groups, and those that
// expire first.
func TestSharesOfFullMap(t *testing.T) {
	type count map[uint32]int // entries by group: 2 and 4 are of shop, 6 and 8 of bank
	for _, tt := range []struct {
		name       string
		room       int
		have, want count
	}{
		{"there is room", 100, count{2: 60, 6: 40}, count{2: 60, 6: 40}},
		{"one Service port alone", 50, count{2: 60}, count{2: 50}},
		{"a small namespace keeps all", 100, count{2: 95, 6: 15}, count{2: 85, 6: 15}},
		{"many Service ports are no larger share", 100, count{2: 80, 4: 80, 6: 60}, count{2: 25, 4: 25, 6: 50}},
		{"a small Service port keeps all", 100, count{2: 10, 4: 200, 6: 50, 8: 50}, count{2: 10, 4: 40, 6: 25, 8: 25}},
	} {
		client, endpoint, held := addr(nft.IP, 1), addr(nft.IP, 2), make(map[string]nft.Element)
		for number, n := range tt.have {
			for i := range n {
				client = client.Next()
				life := &nft.Life{Timeout: time.Hour, Expires: time.Duration(i+1) * time.Second}
				held[nft.NumberedKey(nft.IP, number, client)] = nft.Element{Data: nft.AddrKey(endpoint), Life: life}
			}
		}
		changes, _ := Wrong(nft.IP, held, tt.room, func(n uint32) (Group, List) {
			namespace := map[bool]string{true: "shop", false: "bank"}[n < 6]
			return Group{Namespace: namespace, Number: n, Timeout: time.Hour}, List{Members: []netip.Addr{endpoint}}
		}, nil, nil)
		left := maps.Clone(tt.have)
		for _, c := range changes {
			number, _, _ := nft.SplitNumberedKey(nft.IP, c.Key)
			left[number]--
			last, expires := time.Duration(tt.have[number]-tt.want[number])*time.Second, held[c.Key].Life.Expires
			if c.Now != nil || expires > last {
				t.Errorf("%s: an entry that expires after %s has to change", tt.name, expires)
			}
		}
		if diff := cmp.Diff(tt.want, left); diff != "" {
			t.Errorf("%s: entries left (-want +got):\n%s", tt.name, diff)
		}
	}
}
