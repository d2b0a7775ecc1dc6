package packets

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// Sizes of the test of traffic under change.
const (
	changeRounds  = 200
	burstLength   = 64     // connections that are opened between two looks at what became of them
	mostTracked   = 20_000 // connections that are opened between two times at which all are forgotten
	affineClients = 32     // of each family
)

// moving are the Services whose endpoints change all the time. affine has session affinity, and what asking asks
// for by annotations changes, too.
var moving = []string{"web", "api", "affine", "asking"}

// A movingSlice is an EndpointSlice pair, one of each family, with the numbers of its
// endpoints. The Service that it belongs to changes like everything else.
type movingSlice struct {
	service string
	hosts   []int
	weight  string            // of its endpoints; empty: none is given
	asks    map[string]string // annotations of the Service asking
}

// A movingState is the slices of all moving Services. The first slice of each Service
// stays with it and keeps an endpoint of its own: no Service is ever without one.
type movingState []movingSlice

// newMovingState makes up a state.
func newMovingState(random *rand.Rand) movingState {
	var state movingState
	for i, service := range moving {
		state = append(state, movingSlice{service: service, hosts: append(someHosts(random, 6), i+1)})
	}
	for range 4 {
		state = append(state, movingSlice{service: moving[random.IntN(len(moving))], hosts: someHosts(random, 8)})
	}
	for i := range state {
		state[i].weight = []string{"", "1", "7", "1000"}[random.IntN(4)]
	}
	state[asking].asks = map[string]string{
		tracker.AnnotationPrefix + "lb-algorithm":            []string{"random", "maglev"}[random.IntN(2)],
		tracker.AnnotationPrefix + "ping":                    []string{"false", "true"}[random.IntN(2)],
		tracker.AnnotationPrefix + "connections-of-departed": []string{"keep", "reset"}[random.IntN(2)],
	}
	return state
}

// asking is the place of the Service asking in moving.
const asking = 3

// someHosts makes up a list of at most so many endpoints; lists have some in common.
func someHosts(random *rand.Rand, most int) []int {
	hosts := make([]int, random.IntN(most+1))
	for i := range hosts {
		hosts[i] = 10 + random.IntN(20)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// hosts returns the endpoints of a Service.
func (s movingState) hosts(service string) map[int]bool {
	hosts := map[int]bool{}
	for _, slice := range s {
		for _, host := range slice.hosts {
			hosts[host] = hosts[host] || slice.service == service
		}
	}
	return hosts
}

// The addresses of moving Services and their endpoints, by family.
func movingIP(service, family int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf([]string{"10.96.7.%d", "fd00:10:96:7::%d"}[family], service+1))
}

func movingHost(host, family int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf([]string{"10.244.200.%d", "fd00:10:244:200::%d"}[family], host))
}

// movingNodePort is the node port of the first moving Service.
const movingNodePort = 30080

// movingSecondPort is a port without endpoints of the Service with session affinity.
const movingSecondPort = 81

// manifest returns the objects of a state, and a Service with the given name: when it is in
// the kernel, all of them have been read.
func (s movingState) manifest(tick string) string {
	objects := []any{node}
	for i := range moving {
		service := movingService(i)
		if i == asking {
			service.Annotations = s[i].asks
		}
		objects = append(objects, service)
	}
	for i, moved := range s {
		for family := range 2 {
			hosts := make([]netip.Addr, len(moved.hosts))
			for j, host := range moved.hosts {
				hosts[j] = movingHost(host, family)
			}
			slice := lab.Slice("shop", moved.service, i, lab.FamilyOf(movingIP(0, family)), hosts)
			slice.Name = fmt.Sprintf("slice-%d-%d", i, family)
			if moved.weight != "" {
				slice.Annotations = map[string]string{tracker.AnnotationPrefix + "weight": moved.weight}
			}
			objects = append(objects, slice)
		}
	}
	return lab.Manifest(append(objects, tickService(tick))...)
}

// programmed reports whether the kernel has the endpoints of a state: Services that change all the time are
// programmed at a pace, each at its own.
func (s movingState) programmed(t *testing.T, client *kernel.Client) bool {
	t.Helper()
	tables, _, err := client.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for family, f := range nft.Families {
		for _, frontend := range readback.New(tables[f]).Frontends() {
			if !slices.Contains(moving, frontend.Name.Name) || frontend.Port == movingSecondPort {
				continue
			}
			want := s.hosts(frontend.Name.Name)
			maps.DeleteFunc(want, func(_ int, has bool) bool { return !has })
			have := map[int]bool{}
			for _, endpoint := range frontend.Endpoints().All() {
				have[hostOf(endpoint, family)] = true
			}
			if !maps.Equal(have, want) {
				return false
			}
		}
	}
	return true
}

// movingService returns a moving Service: the first one has a node port, affine has session
// affinity.
func movingService(i int) *corev1.Service {
	s := lab.Service("shop", moving[i], movingIP(i, 0), movingIP(i, 1))
	if i == 0 {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, movingNodePort
	}
	if moving[i] == "affine" {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		// With a second port, chains of their own look up entries. Random worlds have Services with one port.
		s.Spec.Ports = append(s.Spec.Ports,
			corev1.ServicePort{Name: "second", Port: movingSecondPort, Protocol: s.Spec.Ports[0].Protocol})
	}
	return s
}

// tickService returns a Service without endpoints whose name shows how far kube-nft has come.
func tickService(name string) *corev1.Service {
	return lab.Service("shop", name, netip.MustParseAddr("10.96.9.9"))
}

// A movingTarget is where connections go to: an address of a moving Service.
type movingTarget struct {
	service string
	family  int
	via     string
	to      netip.AddrPort
}

// movingTargets lists all of them.
func movingTargets() []movingTarget {
	var targets []movingTarget
	for family := range 2 {
		for i, service := range moving {
			targets = append(targets, movingTarget{service, family, "pod", netip.AddrPortFrom(movingIP(i, family), 80)})
		}
		node := netip.AddrPortFrom(nodeAddresses[family], movingNodePort)
		targets = append(targets, movingTarget{moving[0], family, "external", node})
	}
	return targets
}

// nodeAddresses are those of the node in tests with traffic of their own.
var nodeAddresses = []netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("fd00:192:168::2")}

// A traffic opens connections to moving Services without a pause.
type traffic struct {
	bench     *bench
	random    *rand.Rand
	opened    int
	forgotten int                // of opened, those that connection tracking has forgotten
	dropped   int                // packets that were dropped because the endpoint of an affinity entry left
	last      map[netip.Addr]int // the endpoint that a client of the Service affine reached last
}

// burst opens connections and checks where each comes out: at an endpoint that one of the
// states has.
func (tr *traffic) burst(t *testing.T, states ...movingState) {
	t.Helper()
	targets := movingTargets()
	if tr.opened-tr.forgotten > mostTracked { // a slow commit must not fill the table, nor let ports come round again
		flushTracked(t)
		tr.forgotten = tr.opened
	}
	for range burstLength {
		target := targets[tr.opened%len(targets)]
		connection := tr.next(target)
		if err := tr.bench.device(target.via).write(opening(connection)); err != nil {
			t.Fatal(err)
		}
		out := tr.comeOut(t)
		// Its affinity entry may name an endpoint that left: then the packet was dropped, and the next one of the
		// connection chooses another endpoint. While a commit removes the entry, packets cannot: the kernel drops
		// each until the commit ends.
		for begun := time.Now(); len(out) == 0 && target.service == "affine" &&
			!tr.keeps(connection.src.Addr(), states) && time.Since(begun) < markerTimeout; tr.dropped++ {
			if err := tr.bench.device(target.via).write(opening(connection)); err != nil {
				t.Fatal(err)
			}
			out = tr.comeOut(t)
		}
		if complaint := tr.complaint(target, connection, out, states); complaint != "" {
			t.Fatalf("connection %d, %s: %s", tr.opened, connection, complaint)
		}
	}
}

// next makes up a connection that there has not been yet.
func (tr *traffic) next(target movingTarget) tuple {
	tr.opened++
	port := uint16(1024 + tr.opened%60000)
	client := 1 + tr.opened/60000%200
	if target.service == "affine" {
		client = 1 + tr.random.IntN(affineClients)
	}
	prefix := map[string][]string{
		"pod":      {"10.244.7.%d", "fd00:10:244:7::%x"},
		"external": {"203.0.113.%d", "2001:db8:113::%x"},
	}[target.via][target.family]
	from := netip.MustParseAddr(fmt.Sprintf(prefix, client))
	return tuple{proto: unix.IPPROTO_TCP, src: netip.AddrPortFrom(from, port), dst: target.to}
}

// comeOut returns what comes out of the node for the packet that was written last: the
// kernel has dealt with it before the write returned. Advice, such as an ICMP redirect, is
// left out.
func (tr *traffic) comeOut(t *testing.T) []packet {
	t.Helper()
	packets, err := tr.bench.capture.drain()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(packets, func(p packet) bool { return p.kind == other })
}

// complaint returns what is wrong with what became of a connection, or "".
func (tr *traffic) complaint(target movingTarget, connection tuple, out []packet, states []movingState) string {
	if len(out) != 1 || out[0].kind != opens {
		return fmt.Sprintf("%d packets came out: %+v", len(out), out)
	}
	host := hostOf(out[0].dst, target.family)
	if !slices.ContainsFunc(states, func(s movingState) bool { return s.hosts(target.service)[host] }) {
		return fmt.Sprintf("went to %s", out[0].dst)
	}
	if target.service == "affine" {
		return tr.affinityComplaint(connection.src.Addr(), host, states)
	}
	return ""
}

// hostOf returns the number of an endpoint, 0 if the address is none's.
func hostOf(endpoint netip.AddrPort, family int) int {
	host := int(endpoint.Addr().AsSlice()[len(endpoint.Addr().AsSlice())-1])
	if family == 1 { // movingHost writes decimal digits, which an IPv6 address reads as hexadecimal
		host = host/16*10 + host%16
	}
	if netip.AddrPortFrom(movingHost(host, family), 8080) != endpoint {
		return 0
	}
	return host
}

// affinityComplaint returns why a client of the Service affine should have been sent
// elsewhere, or "": it stays where it was as long as that endpoint stays in its slice.
func (tr *traffic) affinityComplaint(client netip.Addr, host int, states []movingState) string {
	before, known := tr.last[client]
	tr.last[client] = host
	if known && host != before && stays("affine", before, states) {
		return fmt.Sprintf("went to endpoint %d, but the client is known to endpoint %d", host, before)
	}
	return ""
}

// keeps reports whether a client of the Service affine is known to an endpoint that stays.
func (tr *traffic) keeps(client netip.Addr, states []movingState) bool {
	host, known := tr.last[client]
	return known && stays("affine", host, states)
}

// forget lets clients of the Service affine go anywhere whose endpoint may have left it.
func (tr *traffic) forget(states ...movingState) {
	for client, host := range tr.last {
		if !stays("affine", host, states) {
			delete(tr.last, client)
		}
	}
}

// stays reports whether a slice has an endpoint of a Service in all states. One that moves
// to another slice may be gone for a moment, since slices are taken up one by one.
func stays(service string, host int, states []movingState) bool {
	for i := range states[0] {
		if !slices.ContainsFunc(states, func(s movingState) bool {
			return s[i].service != service || !slices.Contains(s[i].hosts, host)
		}) {
			return true
		}
	}
	return false
}

// TestTrafficUnderChange opens connections without a pause while endpoints of several
// Services are replaced hundreds of times: lists grow and shrink, slices split, merge and
// move between Services. Every connection must reach an endpoint that the Service has, or
// had until the commit that is under way; with session affinity, at a later packet if the
// client's endpoint has left.
func TestTrafficUnderChange(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b := newBench(t, nodeAddresses, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"),
		netip.MustParsePrefix("fd00:10:244::/48")})
	heard, objects := lab.ListenToNotices(t), lab.NewDirectory(t)
	client := lab.Open(t, kernel.Open)
	state := newMovingState(random)
	objects.Write(t, "objects.yaml", state.manifest("tick"))
	p := objects.Start(t, "--min-sync-period=0", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48")
	t.Cleanup(func() { logOnFailure(t, p) })
	heard.Next(t, lab.About("shop/tick:http"))
	tr := &traffic{bench: b, random: random, last: map[netip.Addr]int{}}
	start := time.Now()
	for round := range changeRounds {
		next := newMovingState(random)
		tick := fmt.Sprintf("tick-%d", round)
		objects.Write(t, "objects.yaml", next.manifest(tick))
		for ticked, begun := false, time.Now(); !ticked || !next.programmed(t, client); {
			if time.Since(begun) > time.Minute {
				t.Fatalf("round %d is not programmed after a minute", round)
			}
			ticked = ticked || heard.Told(t, lab.About("shop/"+tick+":http"))
			tr.burst(t, state, next)
		}
		tr.forget(state, next)
		state = next
		tr.burst(t, state)
		flushTracked(t)
		tr.forgotten = tr.opened
	}
	t.Logf("%d connections, %.0f a second; %d packets dropped", tr.opened,
		float64(tr.opened)/time.Since(start).Seconds(), tr.dropped)
}

// node is the Node of tests with traffic of their own.
var node = lab.Node(lab.NodeName, nodeAddresses...)

// flushTracked forgets all tracked connections of the current namespace, which may be no
// more than the kernel has room for.
func flushTracked(t testing.TB) {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  unix.NFNL_SUBSYS_CTNETLINK<<8 | 2, // IPCTNL_MSG_CT_DELETE
			Flags: netlink.Request | netlink.Acknowledge,
		},
		Data: make([]byte, nfgenmsgLen), // both families, all entries
	})
	if err != nil {
		t.Fatalf("flush tracked connections: %v", err)
	}
}
