package packets

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// connectionsPerEndpoint is how many connections a flow makes for each endpoint that it
// should reach: with a uniform choice, one of ten endpoints is missed in 1 of 10^16 runs.
const connectionsPerEndpoint = 40

// The source ports of a case's connections, each used once: below the node ports and the
// kernel's own choice.
const (
	firstPort = 2000
	lastPort  = 29999
)

// markerTimeout bounds the wait for a packet that nothing holds up. It only passes when
// the bench itself is broken.
const markerTimeout = 10 * time.Second

// Where markers go: through the external device, past every Service.
var (
	farIPv4 = netip.MustParseAddr("192.0.2.254")
	farIPv6 = netip.MustParseAddr("2001:db8:ffff::254")
)

// benchParameters make the namespace forward packets both ways and refuse as often as it
// is asked to. Unless told otherwise the kernel limits the rate of ICMP errors, to each
// client and altogether; the masks are the types that it limits, of which 255 does not occur.
var benchParameters = map[string]string{
	"net.ipv4.ip_forward":                  "1",
	"net.ipv4.conf.all.rp_filter":          "0",
	"net.ipv4.conf.default.rp_filter":      "0",
	"net.ipv4.conf.all.send_redirects":     "0",
	"net.ipv4.conf.default.send_redirects": "0",
	"net.ipv4.icmp_ratemask":               "0",
	"net.ipv4.tcp_max_syn_backlog":         "4096",
	"net.ipv6.conf.all.forwarding":         "1",
	"net.ipv6.icmp.ratemask":               "255",
}

// A bench is a node in a namespace of its own: ext0 is the way to the world and has the
// node's addresses, behind pod0 are all pods.
type bench struct {
	external, pod *tun
	capture       *capture
	addresses     []netip.Addr
	listeners     []*listener
	port          uint16 // the source port of the latest connection
	marker        uint16 // the sequence number of the latest marker
}

// newBench moves the calling test into a namespace that is such a node.
func newBench(t testing.TB, addresses []netip.Addr, pods []netip.Prefix) *bench {
	t.Helper()
	lab.New(t)
	for name, value := range benchParameters {
		lab.Sysctl(t, name, value)
	}
	b := &bench{external: newTUN(t, "ext0"), pod: newTUN(t, "pod0"), addresses: addresses, port: firstPort - 1}
	var err error
	for _, addr := range addresses {
		err = errors.Join(err, lab.AddAddress(b.external.name, netip.PrefixFrom(addr, addr.BitLen()-subnetBits(addr))))
	}
	for _, everything := range []string{"0.0.0.0/0", "::/0"} {
		err = errors.Join(err, lab.AddRoute(b.external.name, netip.MustParsePrefix(everything), netip.Addr{}))
	}
	for _, prefix := range pods {
		err = errors.Join(err, lab.AddRoute(b.pod.name, prefix, netip.Addr{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	b.capture = newCapture(t, b.external, b.pod)
	t.Cleanup(b.closeListeners)
	return b
}

// subnetBits returns how many bits number the hosts of a node's subnet: /24 or /64.
func subnetBits(addr netip.Addr) int {
	if addr.Is4() {
		return 8
	}
	return 64
}

// listenFor opens the listeners that flows need: where they go to an address of the node
// or are expected to be sent to one.
func (b *bench) listenFor(flows []flow) error {
	open := map[tuple]bool{}
	for _, f := range flows {
		for _, addr := range append([]netip.AddrPort{f.To}, f.Expect.DNAT...) {
			key := tuple{proto: protocols[f.Proto], dst: addr}
			if open[key] || !b.hasAddress(addr.Addr()) {
				continue
			}
			open[key] = true
			l, err := listen(key.proto, addr)
			if err != nil {
				return err
			}
			b.listeners = append(b.listeners, l)
		}
	}
	return nil
}

// hasAddress reports whether an address is one of the node's.
func (b *bench) hasAddress(addr netip.Addr) bool {
	for _, own := range b.addresses {
		if addr == own {
			return true
		}
	}
	return addr.IsLoopback()
}

// closeListeners ends all listeners.
func (b *bench) closeListeners() {
	for _, l := range b.listeners {
		l.close()
	}
}

// try opens n connections of a flow and returns what became of each.
func (b *bench) try(f flow, n int) (map[tuple]outcome, error) {
	connections, err := b.connections(f, n)
	if err != nil {
		return nil, err
	}
	if _, err := b.capture.drain(); err != nil {
		return nil, err
	}
	sockets, err := b.open(f.Via, connections)
	defer closeAll(sockets)
	if err != nil {
		return nil, err
	}
	packets, err := b.settle(f.Via, f.From)
	if err != nil {
		return nil, err
	}
	tracked, err := readTracked()
	if err != nil {
		return nil, err
	}
	seen := sightings(connections, packets, tracked)
	return outcomes(seen, tracked), b.answerOne(f, seen, sockets)
}

// connections returns n connections of a flow, each from a port that was never used before.
func (b *bench) connections(f flow, n int) ([]tuple, error) {
	if int(b.port)+n > lastPort {
		return nil, errors.New("the case makes more connections than there are source ports")
	}
	connections := make([]tuple, n)
	for i := range connections {
		b.port++
		connections[i] = tuple{proto: protocols[f.Proto], src: netip.AddrPortFrom(f.From, b.port), dst: f.To}
	}
	return connections, nil
}

// open sends the first packet of each connection. The sockets that it returns belong to
// the connections of the node itself.
func (b *bench) open(via string, connections []tuple) (sockets map[tuple]int, err error) {
	sockets = map[tuple]int{}
	for _, c := range connections {
		if via != "local" {
			if err := b.device(via).write(opening(c)); err != nil {
				return sockets, err
			}
			continue
		}
		fd, err := connect(c)
		if fd >= 0 {
			sockets[c] = fd
		}
		if err != nil {
			return sockets, err
		}
	}
	return sockets, nil
}

// closeAll closes sockets.
func closeAll(sockets map[tuple]int) {
	for _, fd := range sockets {
		unix.Close(fd)
	}
}

// device returns the device that packets arrive on.
func (b *bench) device(via string) *tun {
	if via == "pod" {
		return b.pod
	}
	return b.external
}

// settle waits until everything that was sent the same way before has come out, and
// returns it. It sends markers after it, which cannot overtake and which no Service
// takes; once they are out, what is not out yet never will be.
func (b *bench) settle(via string, from netip.Addr) ([]packet, error) {
	markers, err := b.sendMarkers(via, from)
	if err != nil {
		return nil, err
	}
	packets, err := b.captureUntil(markers)
	if err != nil {
		return nil, fmt.Errorf("after packets from %s via %s: %w", from, via, err)
	}
	arrivals, err := b.arrivals()
	return append(packets, arrivals...), err
}

// captureUntil returns what comes out until all markers with the given sequence numbers
// are among it.
func (b *bench) captureUntil(markers map[uint16]bool) (packets []packet, err error) {
	deadline := time.Now().Add(markerTimeout)
	for len(markers) > 0 {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("a marker did not come out within %s", markerTimeout)
		}
		if err := b.capture.wait(markerTimeout); err != nil {
			return nil, err
		}
		fresh, err := b.capture.drain()
		if err != nil {
			return nil, err
		}
		for _, p := range fresh {
			if p.kind == echo {
				delete(markers, uint16(p.sequence))
			}
		}
		packets = append(packets, fresh...)
	}
	rest, err := b.capture.drain() // what came out by another device while one was read
	return append(packets, rest...), err
}

// arrivals returns the first packets that reached listeners on the node.
func (b *bench) arrivals() ([]packet, error) {
	var all []packet
	for _, l := range b.listeners {
		packets, err := l.arrivals()
		if err != nil {
			return nil, err
		}
		all = append(all, packets...)
	}
	return all, nil
}

// sendMarkers sends echo requests the same way as a flow, and returns their sequence
// numbers: one to the outside, from the node itself also one to itself.
func (b *bench) sendMarkers(via string, from netip.Addr) (map[uint16]bool, error) {
	far := farFrom(from)
	b.marker++
	if via != "local" {
		return map[uint16]bool{b.marker: true}, b.device(via).write(echoRequest(from, far, b.marker))
	}
	sent := map[uint16]bool{b.marker: true, b.marker + 1: true}
	outward := sendRaw(icmpProtocol(from), from, far, echoMessage(from, far, b.marker))
	b.marker++
	inward := sendRaw(icmpProtocol(from), from, from, echoMessage(from, from, b.marker))
	return sent, errors.Join(outward, inward)
}

// farFrom returns the marker's destination in the family of an address.
func farFrom(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return farIPv4
	}
	return farIPv6
}
