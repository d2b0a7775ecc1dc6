package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// Names of rows that charts show.
const (
	packetOwn   = "first packet of a connection"
	packetEmpty = "first packet: floor, empty nat chains"
	packetRule  = "first packet: floor, one static DNAT rule"
	packetMap   = "first packet: floor, one static DNAT map of all Services"
)

// packetRounds is how often each way is taken in turn, and packetsPerRound how many
// packets are sent each time, every one the first of a connection.
const (
	packetRounds    = 12
	packetsPerRound = 3000
)

// A track is one way that packets can take: a namespace with its own ruleset.
type track struct {
	name  string
	space *lab.Namespace
	fd    int // raw socket
	to    func(random *rand.Rand) netip.Addr
	took  []time.Duration // each packet, a value for each round
}

// measurePackets notes how long the kernel takes for the first packet of a connection from
// this node: from the system call, through the nat chains, to the device that drops it.
func measurePackets(sheet *sheet, at size, l *loaded) error {
	tracks, err := newTracks(at, l)
	defer func() {
		for _, t := range tracks {
			unix.Close(t.fd)
			t.space.Close()
		}
	}()
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range packetRounds {
		for _, t := range tracks {
			if err := t.send(random, round); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
	}
	for _, t := range tracks {
		sheet.duration(at, t.name, least(t.took))
	}
	own, static := least(tracks[0].took), least(tracks[3].took)
	sheet.set(at, "first packet / one static DNAT map", ratio, float64(own)/float64(static))
	return nil
}

// newTracks returns our track and those to compare it with.
func newTracks(at size, l *loaded) (tracks []*track, err error) {
	toService := func(random *rand.Rand) netip.Addr { return clusterIP(random.IntN(at.services)) }
	toEndpoint := func(random *rand.Rand) netip.Addr {
		return lab.After(firstEndpoint, 1+random.IntN(at.services*at.endpoints))
	}
	batch := change.Diff(nft.Tables{}, l.ruleset.Want())
	for _, way := range []struct {
		name string
		load func() error
		to   func(*rand.Rand) netip.Addr
	}{
		{packetOwn, func() error { return commitOnce(batch) }, toService},
		{packetEmpty, func() error { return loadText(emptyChains) }, toEndpoint},
		{packetRule, func() error { return loadText(staticRule) }, toService},
		{packetMap, func() error { return loadText(staticMap(at)) }, toService},
	} {
		t, err := newTrack(way.load)
		if err != nil {
			return tracks, fmt.Errorf("%s: %w", way.name, err)
		}
		t.name, t.to = way.name, way.to
		tracks = append(tracks, t)
	}
	return tracks, nil
}

func newTrack(load func() error) (t *track, err error) {
	t = &track{}
	if t.space, err = newSpace(false); err != nil {
		return nil, err
	}
	err = t.space.Do(func() error {
		if err := load(); err != nil {
			return err
		}
		t.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		t.space.Close()
		return nil, err
	}
	return t, nil
}

func commitOnce(batch nft.Batch) error {
	kernel, err := kernel.Open()
	if err != nil {
		return err
	}
	defer kernel.Close()
	return kernel.Commit(context.Background(), batch)
}

// loadText loads a ruleset by the nft program.
func loadText(text string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft -f: %w: %s", err, out)
	}
	return nil
}

const emptyChains = `table ip floor {
	chain output { type nat hook output priority -101; }
	chain postrouting { type nat hook postrouting priority 100; }
}`

var staticRule = fmt.Sprintf(`table ip floor {
	chain output { type nat hook output priority -101; tcp dport %d dnat to %s:%d; }
	chain postrouting { type nat hook postrouting priority 100; }
}`, lab.ServicePort, lab.After(firstEndpoint, 1), lab.EndpointPort)

// staticMap sends each Service to its first endpoint.
func staticMap(at size) string {
	var b strings.Builder
	b.WriteString("table ip floor {\n\tmap services { type ipv4_addr . inet_proto . inet_service : ipv4_addr . " +
		"inet_service; elements = {\n")
	for i := range at.services {
		fmt.Fprintf(&b, "%s . tcp . %d : %s . %d,\n", clusterIP(i), lab.ServicePort,
			lab.After(firstEndpoint, 1+i*at.endpoints), lab.EndpointPort)
	}
	b.WriteString("} }\n")
	for _, hook := range []string{"prerouting", "output"} {
		fmt.Fprintf(&b, "\tchain %s { type nat hook %[1]s priority -101; meta l4proto { tcp, udp, sctp } dnat ip to "+
			"ip daddr . meta l4proto . th dport map @services; }\n", hook)
	}
	b.WriteString("\tchain postrouting { type nat hook postrouting priority 100; }\n}\n")
	return b.String()
}

// send sends the packets of one round.
func (t *track) send(random *rand.Rand, round int) error {
	packets := make([][]byte, packetsPerRound)
	for i := range packets {
		packets[i] = syn(clientAddress.Addr(), t.to(random), uint16(1024+round*packetsPerRound+i))
	}
	to := &unix.SockaddrInet4{}
	begin := time.Now()
	for _, packet := range packets {
		to.Addr = [4]byte(packet[16:20])
		if err := unix.Sendto(t.fd, packet, 0, to); err != nil {
			return err
		}
	}
	t.took = append(t.took, time.Since(begin)/packetsPerRound)
	return nil
}

// syn returns an IPv4 packet with a TCP SYN. The kernel fills in the length and checksum of the IP
// header; the TCP checksum is right.
func syn(client, to netip.Addr, from uint16) []byte {
	source, destination := client.As4(), to.As4()
	p := make([]byte, 40)
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_TCP
	copy(p[12:], source[:])
	copy(p[16:], destination[:])
	tcp := p[20:]
	binary.BigEndian.PutUint16(tcp, from)
	binary.BigEndian.PutUint16(tcp[2:], lab.ServicePort)
	tcp[12], tcp[13] = 5<<4, 2 // five words, SYN
	binary.BigEndian.PutUint16(tcp[14:], 65535)
	binary.BigEndian.PutUint16(tcp[16:], checksum(p[12:], uint32(unix.IPPROTO_TCP+len(tcp))))
	return p
}

// checksum is the checksum of the addresses and a TCP header, which follow each other in b, and
// sum, the rest of the pseudo header (RFC 9293, 3.1).
func checksum(b []byte, sum uint32) uint16 {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
