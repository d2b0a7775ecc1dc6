package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Target is an endpoint to which our tables send connections.
type Target struct {
	Endpoint netip.AddrPort
	Protocol uint8
	// Outside says that clients outside the cluster reach it, too; Kept, that it sees their addresses.
	Outside, Kept bool
}

// perList is about how many endpoints of a list are targets.
const perList = 32

// Sampled reports whether the endpoint with an index in a list of n endpoints is a target.
func Sampled(index, n int) bool { return index%max(1, n/perList) == 0 }

// TargetsOf returns some of the endpoints of a Service port that are used.
func TargetsOf(p *tracker.ServicePort) (list []Target) {
	add := func(endpoints []netip.AddrPort, outside, kept bool) {
		for i := range endpoints {
			if Sampled(i, len(endpoints)) {
				list = append(list, Target{p.Endpoints(endpoints[i : i+1])[0], uint8(p.ID.Protocol), outside, kept})
			}
		}
	}
	switch {
	case !p.External():
	case p.ExternalLocal:
		add(p.Local, true, true)
	default:
		add(p.Cluster, true, false)
	}
	if p.InternalLocal {
		add(p.Local, false, false)
	} else {
		add(p.Cluster, false, false)
	}
	return list
}

// Bounds of a survey.
const (
	maxRoutes     = 64 // endpoints whose route is looked up, in each family
	perInterface  = 3  // endpoints that are tried behind one interface
	maxInterfaces = 6
)

// A Finding is a base chain that refuses connections to endpoints in general.
type Finding struct {
	Where   string `json:"where"`   // "table inet filter, chain forward"
	By      string `json:"by"`      // "its policy", or a rule
	Refused int    `json:"refused"` // of the connections that were tried
	Tried   int    `json:"tried"`
	Example string `json:"example"` // one that is refused
	// Unless names a rule that may accept them; then it is not known whether they are refused.
	Unless string `json:"unless,omitempty"`
	Remedy string `json:"remedy"`

	// Firewalld says that the rules are those of firewalld with StrictForwardPorts=yes.
	Firewalld bool `json:"-"`
}

// String says what was found.
func (f *Finding) String() string {
	return fmt.Sprintf("%s: %s refuses %d of %d kinds of connections to endpoints, such as %s", f.Where, f.By, f.Refused,
		f.Tried, f.Example) + unlessText(f.Unless, "them")
}

// Look says what keeps connections to endpoints from being forwarded: the kernel itself, or rules of other programs.
// mark is that of masqueraded packets. An error says what could not be looked at; the findings hold nevertheless.
func Look(ctx context.Context, k *kernel.Client, targets []Target, mark uint32) ([]Finding, error) {
	var list []Finding
	for _, family := range nft.Families {
		name := ForwardingOff(family)
		if name == "" || len(targets) == 0 {
			continue
		}
		if kinds := trials(targets, mark, family); len(kinds) > 0 {
			list = append(list, Finding{Where: "sysctl " + name, By: "0, which", Refused: len(kinds), Tried: len(kinds),
				Example: kinds[0].text, Remedy: "sysctl -w " + name + "=1"})
		}
	}
	rules, err := Read(ctx, k)
	if err != nil {
		return list, err
	}
	found, err := rules.Survey(ctx, targets, mark)
	return append(list, found...), err
}

// ForwardingOff returns the kernel parameter by which the kernel forwards no packet of a family in this network
// namespace; empty if it forwards.
func ForwardingOff(f nft.Family) string {
	name := "net.ipv4.ip_forward"
	if f == nft.IP6 {
		name = "net.ipv6.conf.all.forwarding"
	}
	value, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil || strings.TrimSpace(string(value)) != "0" {
		return ""
	}
	return name
}

// A path is where packets to an address leave this node.
type path struct {
	device  string
	source  netip.Addr // of this node's own packets
	gateway bool
	local   bool // the address is this node's
}

// pathTo looks a route up.
func pathTo(addr netip.Addr) (p path, ok bool) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 {
		return p, false
	}
	r := routes[0]
	if i, err := net.InterfaceByIndex(r.LinkIndex); err == nil {
		p.device = i.Name
	}
	p.source, _ = netip.AddrFromSlice(r.Src)
	p.source = p.source.Unmap()
	p.gateway, p.local = r.Gw != nil || r.Via != nil, r.Type == unix.RTN_LOCAL
	return p, true
}

// DeviceTo is the interface by which packets to an address leave this node; empty if they do not, or none is known.
func DeviceTo(addr netip.Addr) string {
	if p, ok := pathTo(addr); ok && !p.local {
		return p.device
	}
	return ""
}

// SourceTo is the address from which this node sends packets to an address; false if none is known.
func SourceTo(addr netip.Addr) (netip.Addr, bool) {
	p, ok := pathTo(addr)
	return p.source, ok && p.source.IsValid()
}

// Forwarded reports whether packets for an address are forwarded: it is not this node's own.
func Forwarded(addr netip.Addr) bool {
	p, ok := pathTo(addr)
	return !ok || !p.local
}

// Linked reports whether an address is behind an interface of this node, without a gateway or a tunnel in between.
func Linked(addr netip.Addr) bool {
	p, ok := pathTo(addr)
	if !ok || p.gateway {
		return false
	}
	i, err := net.InterfaceByName(p.device)
	return err == nil && i.Flags&net.FlagPointToPoint == 0
}

// A place is a target and the way there.
type place struct {
	Target
	path
}

// choose returns a few targets of a family that are forwarded, behind different interfaces.
func choose(targets []Target, f nft.Family) (chosen []place) {
	targets = slices.DeleteFunc(slices.Clone(targets), func(t Target) bool {
		return tracker.FamilyOf(t.Endpoint.Addr()) != f
	})
	slices.SortFunc(targets, func(a, b Target) int {
		return cmp.Or(a.Endpoint.Compare(b.Endpoint), cmp.Compare(a.Protocol, b.Protocol),
			nft.TrueFirst(a.Outside, b.Outside))
	})
	targets = slices.CompactFunc(targets, func(a, b Target) bool {
		return a.Endpoint == b.Endpoint && a.Protocol == b.Protocol
	})
	slices.SortStableFunc(targets, func(a, b Target) int { return nft.TrueFirst(a.Outside, b.Outside) })
	step := max(1, len(targets)/maxRoutes)
	behind := map[string]int{}
	for i := 0; i < len(targets); i += step {
		p, ok := pathTo(targets[i].Endpoint.Addr())
		if !ok || p.local || behind[p.device] == perInterface || behind[p.device] == 0 && len(behind) == maxInterfaces {
			continue
		}
		behind[p.device]++
		chosen = append(chosen, place{targets[i], p})
	}
	return chosen
}

// beyond are addresses on the Internet, to find the interface by which packets from outside arrive: no host has
// those of RFC 5737 and RFC 3849.
var beyond = map[nft.Family]netip.Addr{
	nft.IP:  netip.AddrFrom4([4]byte{192, 0, 2, 1}),
	nft.IP6: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}),
}

// Survey tries connections to some of the targets: from outside, masqueraded with the mark, and from pods on this
// node. It returns what refuses them in general, or may do so: that has a field Unless. Without any target it tries a
// connection of which nothing is known.
func (f *Firewall) Survey(ctx context.Context, targets []Target, mark uint32) (list []Finding, err error) {
	for _, family := range nft.Families {
		kinds, seen := trials(targets, mark, family), map[int]bool{} // findings of this family
		for _, k := range kinds {
			blocker, tryErr := f.refuses(ctx, k)
			if errors.Is(tryErr, ErrTooMany) {
				return nil, tryErr
			}
			err = cmp.Or(err, tryErr)
			if blocker == nil {
				continue
			}
			at := slices.IndexFunc(list, func(f Finding) bool {
				return f.Where == blocker.Where && f.By == blocker.By && (f.Unless == "") == (blocker.Unless == "")
			})
			if at < 0 {
				at = len(list)
				example := k.text
				if blocker.Answer {
					example = "the answers to " + example
				}
				list = append(list, Finding{Where: blocker.Where, By: blocker.By, Example: example, Remedy: blocker.Remedy,
					Unless: blocker.Unless, Firewalld: blocker.firewalld})
			}
			list[at].Refused++
			if !seen[at] {
				seen[at] = true
				list[at].Tried += len(kinds)
			}
		}
	}
	return list, err
}

// A kind is a kind of connections: first packets as they come to the hook forward.
type kind struct {
	// packets are from different clients. The kind is refused if all of them are: a chain may accept some clients only.
	packets []Packet
	text    string // for people
}

// refuses returns what refuses a kind of connections in general; nil if one of its clients is accepted.
func (f *Firewall) refuses(ctx context.Context, k kind) (found *Blocker, err error) {
	for _, p := range k.packets {
		blocker, tryErr := f.Refuses(ctx, unix.NF_INET_FORWARD, p)
		if err = cmp.Or(err, tryErr); blocker == nil {
			return nil, err
		}
		if blocker.General && (found == nil || found.Unless == "") {
			found = blocker
		}
	}
	return found, err
}

// from returns the kind of connections with an unknown client that arrive by a way: a client on the Internet, and
// a host of the node's own network. The latter is as near to the node's own address as that of other nodes.
func (p Packet) from(outside path) kind {
	p.In = outside.device
	k := kind{text: p.text()}
	for _, source := range []netip.Addr{beyond[p.Family], outside.source.Next()} {
		if p.Source = source; source.IsValid() && p.In != "" {
			k.packets = append(k.packets, p)
		}
	}
	if len(k.packets) == 0 {
		p.Source = netip.Addr{}
		k.packets = append(k.packets, p)
	}
	return k
}

// trials are the kinds of connections that a survey tries.
func trials(targets []Target, mark uint32, f nft.Family) (kinds []kind) {
	base := Packet{Family: f, State: StateNew, Status: statusTranslated}
	if len(targets) == 0 {
		return []kind{base.from(path{})}
	}
	outside, _ := pathTo(beyond[f])
	chosen := choose(targets, f)
	var pods []place // behind different interfaces
	for _, p := range chosen {
		if !p.gateway && p.device != outside.device && len(pods) < 2 &&
			!slices.ContainsFunc(pods, func(q place) bool { return q.device == p.device }) {
			pods = append(pods, p)
		}
	}
	for _, to := range chosen {
		p := base
		p.Destination, p.DestinationPort, p.Protocol, p.Out = to.Endpoint.Addr(), to.Endpoint.Port(), to.Protocol, to.device
		if to.Outside {
			q := p
			if !to.Kept {
				q.Mark = mark
			}
			kinds = append(kinds, q.from(outside))
		}
		for _, from := range pods {
			if from.Endpoint.Addr() != to.Endpoint.Addr() {
				q := p
				q.Source, q.In = from.Endpoint.Addr(), from.device
				kinds = append(kinds, kind{[]Packet{q}, q.text()})
			}
		}
		if !to.Outside && len(pods) == 0 {
			kinds = append(kinds, p.from(path{}))
		}
	}
	return kinds
}

// text describes the connection for people.
func (p *Packet) text() string {
	from := "a client"
	switch {
	case p.Source.IsValid():
		from = p.Source.String()
	case p.Mark != 0:
		from = "a masqueraded client"
	}
	if p.In != "" {
		from += " by " + nft.Visible(p.In)
	}
	if !p.Destination.IsValid() {
		return from + " to an endpoint"
	}
	to := netip.AddrPortFrom(p.Destination, p.DestinationPort).String() + "/" + nft.ProtocolText(p.Protocol)
	if p.Out != "" {
		to += " by " + nft.Visible(p.Out)
	}
	return from + " to " + to
}
