package daemon

import (
	"errors"
	"flag"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

var udpClients = flag.Int("udp-clients", 20_000, "clients of TestUDPFlood")

// udpNeighbour is the cluster IP of a UDP Service of another namespace.
var udpNeighbour = netip.MustParseAddr("10.96.0.90")

// publishNeighbour writes that Service.
func (c *crossing) publishNeighbour(t *testing.T, endpoint int) {
	t.Helper()
	service := lab.Service("good", "dns", udpNeighbour)
	slice := lab.Slice("good", "dns", 0, corev1.IPv4Protocol, []netip.Addr{crossEndpoint(endpoint, 0)})
	service.Spec.Ports[0].Protocol, slice.Ports[0].Protocol = corev1.ProtocolUDP, new(corev1.ProtocolUDP)
	c.objects.Write(t, "neighbour.yaml", lab.Manifest(service, slice))
}

// flood sends a datagram to port 80 of an address from each of so many addresses, which are of no host.
func (c *crossing) flood(t *testing.T, address netip.Addr, n int) {
	t.Helper()
	err := c.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Port: 5353}))
		to := &unix.SockaddrInet4{Port: 80, Addr: address.As4()}
		for i := 0; i < n && err == nil; i++ {
			from := unix.Inet4Pktinfo{Spec_dst: lab.After(netip.MustParseAddr("198.18.0.1"), i).As4()}
			err = unix.Sendmsg(fd, []byte("?"), unix.PktInfo4(&from), to, 0)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A udpFlow is an entry of connection tracking.
type udpFlow struct {
	id       uint32
	endpoint netip.Addr
}

// udpFlows returns the flows to a cluster IP, by client.
func udpFlows(t *testing.T, table *conntrack.Table, to netip.Addr) map[netip.AddrPort]udpFlow {
	t.Helper()
	list, err := table.Flows(t.Context(), conntrack.Filter{Family: tracker.IPv4, Protocol: tracker.UDP},
		func(f *conntrack.Flow) bool { return f.Original.Destination.Addr() == to })
	if err != nil {
		t.Fatal(err)
	}
	flows := make(map[netip.AddrPort]udpFlow)
	for _, f := range list {
		flows[f.Original.Source] = udpFlow{f.ID, f.Endpoint().Addr()}
	}
	return flows
}

// TestUDPFlood: among many UDP flows of another namespace's Service, a client that keeps its port is answered by the
// endpoint that replaces its own, and no flow of the others goes. When one of their endpoints leaves, its flows go, all
// of them and no others.
func TestUDPFlood(t *testing.T) {
	t.Parallel()
	c := newCrossing(t)
	lab.Sysctl(t, "net.netfilter.nf_conntrack_udp_timeout", "3600")
	table := lab.Open(t, conntrack.Open)
	c.publish(t, nil, corev1.ProtocolUDP, nil, endpointState{0, ""}, endpointState{1, ""})
	c.publishNeighbour(t, 0)
	// No masquerading, for which an endpoint's port has 64,512 ports of the node.
	proxy := c.start(t, "--cluster-cidr", "198.18.0.0/15,fd00:244::/64")
	var client *net.UDPConn
	if err := c.client.Do(func() (err error) {
		client, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(udpNeighbour, 80)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	answeredBy := func(endpoint int) time.Duration {
		t.Helper()
		began, want := time.Now(), crossEndpoint(endpoint, 0).String()
		lab.Eventually(t, "the client is answered by "+want, func() bool {
			got, err := exchange(client, 100*time.Millisecond)
			return err == nil && got == want
		})
		return time.Since(began)
	}
	answeredBy(0)
	c.publishNeighbour(t, 2)
	quiet := answeredBy(2)

	c.flood(t, crossCluster[0], *udpClients)
	before := udpFlows(t, table, crossCluster[0])
	if len(before) != *udpClients {
		t.Fatalf("%d clients have %d flows", *udpClients, len(before))
	}
	c.publishNeighbour(t, 0)
	t.Logf("the client waits %v, %v without %d others", answeredBy(0), quiet, *udpClients)
	after, neighbours := udpFlows(t, table, crossCluster[0]), udpFlows(t, table, udpNeighbour)
	for from, f := range before {
		if after[from] != f {
			t.Fatalf("the flow of %v was %+v and is %+v", from, f, after[from])
		}
	}

	c.publish(t, proxy, corev1.ProtocolUDP, nil, endpointState{0, ""})
	gone := crossEndpoint(1, 0)
	lab.Eventually(t, "no flow to "+gone.String(), func() bool {
		after = udpFlows(t, table, crossCluster[0])
		for _, f := range after {
			if f.endpoint == gone {
				return false
			}
		}
		return true
	})
	for from, f := range before {
		if now, held := after[from]; held != (f.endpoint != gone) || held && now != f {
			t.Fatalf("the flow of %v was %+v and is %+v", from, f, now)
		}
	}
	for from, f := range udpFlows(t, table, udpNeighbour) {
		if neighbours[from] != f {
			t.Errorf("the neighbour's flow was %+v and is %+v", neighbours[from], f)
		}
	}
	proxy.Stop(t)
}

// TestUDPBeforeService: a flow that was there before its Service ends, though the Service has no endpoints: packets of
// the flow are rejected then, as those of new flows are.
func TestUDPBeforeService(t *testing.T) {
	t.Parallel()
	c := newCrossing(t)
	lab.Sysctl(t, "net.netfilter.nf_conntrack_udp_timeout", "3600")
	table := lab.Open(t, conntrack.Open)
	c.publish(t, nil, corev1.ProtocolUDP, nil, endpointState{0, ""})
	c.start(t, "--cluster-cidr", "198.18.0.0/15,fd00:244::/64")
	address := netip.MustParseAddr("198.51.100.9")
	c.flood(t, address, 3)
	if flows := udpFlows(t, table, address); len(flows) != 3 {
		t.Fatalf("before there is a Service: %v", flows)
	}
	service := lab.Service("shop", "late", netip.MustParseAddr("10.96.0.91"))
	service.Spec.ExternalIPs, service.Spec.Ports[0].Protocol = []string{address.String()}, corev1.ProtocolUDP
	c.objects.Write(t, "late.yaml", lab.Manifest(service))
	none := func() bool { return len(udpFlows(t, table, address)) == 0 }
	lab.Eventually(t, "no flow past the Service", none)
	if c.flood(t, address, 3); !none() {
		t.Errorf("later packets made %v", udpFlows(t, table, address))
	}
}

// TestSourceRangesEndFlows: a client that is not in new source ranges cannot go on sending in a flow that nothing
// answers. Flows of other clients stay.
func TestSourceRangesEndFlows(t *testing.T) {
	t.Parallel()
	c := newCrossing(t)
	lab.Sysctl(t, "net.netfilter.nf_conntrack_udp_timeout", "3600")
	table := lab.Open(t, conntrack.Open)
	address := netip.MustParseAddr("198.51.100.9")
	service := lab.Service("shop", "sink", netip.MustParseAddr("10.96.0.91"))
	service.Spec.Type, service.Spec.Ports[0].Protocol = corev1.ServiceTypeLoadBalancer, corev1.ProtocolUDP
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address.String()}}
	silent := []netip.Addr{crossEndpoint(9, 0)} // no host has it
	slice := lab.Slice("shop", "sink", 0, corev1.IPv4Protocol, silent)
	slice.Ports[0].Protocol = new(corev1.ProtocolUDP)
	c.objects.Write(t, "sink.yaml", lab.Manifest(service, slice))
	c.publish(t, nil, corev1.ProtocolUDP, nil, endpointState{0, ""})
	c.start(t, "--cluster-cidr", "198.18.0.0/15,fd00:244::/64")
	c.flood(t, address, 4)
	before := udpFlows(t, table, address)
	if len(before) != 4 {
		t.Fatalf("without source ranges: %v", before)
	}
	service.Spec.LoadBalancerSourceRanges = []string{"198.18.0.2/31"}
	c.objects.Write(t, "sink.yaml", lab.Manifest(service, slice))
	lab.Eventually(t, "the flows of two clients are gone", func() bool { return len(udpFlows(t, table, address)) == 2 })
	for from, flow := range udpFlows(t, table, address) {
		if admitted := netip.MustParsePrefix("198.18.0.2/31"); !admitted.Contains(from.Addr()) || flow != before[from] {
			t.Errorf("%v has %v, before %v", from, flow, before[from])
		}
	}
}
