package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// A crossing is a node between a client outside and pods, each in a namespace of its own.
type crossing struct {
	client, pods, pod *lab.Namespace // outside; endpoints; a pod that is a client
	objects           lab.Directory
	tick              string // the Service that was published last
	change            func(*corev1.Service)
}

// The addresses of a crossing, by family.
var (
	crossNode     = pair("192.0.2.1", "2001:db8::1")
	crossClient   = pair("192.0.2.9", "2001:db8::9")
	crossGateway  = pair("10.244.0.1", "fd00:244::1")
	crossPod      = pair("10.244.1.9", "fd00:244:0:1::9") // a pod that is a client
	crossPodGate  = pair("10.244.1.1", "fd00:244:0:1::1")
	crossCluster  = pair("10.96.0.80", "fd00:96::80")
	crossExternal = pair("198.51.100.80", "2001:db8:51::80")
	crossBalancer = pair("203.0.113.80", "2001:db8:113::80")
)

const crossNodePort = 30080

// crossPatience bounds the wait for an answer that comes at once, unless the machine is busy.
const crossPatience = 20 * time.Second

// crossEndpoint is one of the pods that serve.
func crossEndpoint(i, family int) netip.Addr {
	return lab.After(pair("10.244.0.20", "fd00:244::20")[family], i)
}

func pair(ip4, ip6 string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(ip4), netip.MustParseAddr(ip6)}
}

// newCrossing moves the test onto the node.
func newCrossing(t *testing.T) *crossing {
	t.Helper()
	lab.New(t)
	c := &crossing{objects: lab.NewDirectory(t)}
	c.client, c.pods, c.pod = lab.Open(t, lab.NewNamespace), lab.Open(t, lab.NewNamespace), lab.Open(t, lab.NewNamespace)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(lab.Connect("ext0", c.client, "eth0"))
	must(lab.Connect("pod0", c.pods, "eth0"))
	must(lab.Connect("pod1", c.pod, "eth0"))
	must(lab.Forward())
	for family, bits := range []int{24, 64} {
		must(lab.AddAddress("ext0", netip.PrefixFrom(crossNode[family], bits)))
		must(lab.AddAddress("pod0", netip.PrefixFrom(crossGateway[family], bits)))
		must(lab.AddAddress("pod1", netip.PrefixFrom(crossPodGate[family], bits)))
		anywhere := netip.PrefixFrom([]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[family], 0)
		must(lab.AddRoute("ext0", anywhere, crossClient[family]))
		must(c.client.Do(func() error {
			return errors.Join(lab.AddAddress("eth0", netip.PrefixFrom(crossClient[family], bits)),
				lab.AddRoute("eth0", anywhere, crossNode[family]))
		}))
		must(c.pods.Do(func() error {
			var err error
			for i := range 3 {
				err = errors.Join(err, lab.AddAddress("eth0", netip.PrefixFrom(crossEndpoint(i, family), bits)))
			}
			return errors.Join(err, lab.AddRoute("eth0", anywhere, crossGateway[family]))
		}))
		must(c.pod.Do(func() error {
			return errors.Join(lab.AddAddress("eth0", netip.PrefixFrom(crossPod[family], bits)),
				lab.AddRoute("eth0", anywhere, crossPodGate[family]))
		}))
		for i := range 3 {
			must(c.pods.Do(func() error { return serveNames(t, crossEndpoint(i, family)) }))
			// The first neighbour solicitation for an address may get lost, and the next one comes a second later.
			conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(crossEndpoint(i, family), lab.EndpointPort).String(),
				crossPatience)
			must(err)
			must(conn.Close())
		}
	}
	return c
}

// serveNames answers each line of TCP and each datagram that reaches an address with the address.
func serveNames(t *testing.T, addr netip.Addr) error {
	at := netip.AddrPortFrom(addr, lab.EndpointPort)
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	datagrams, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	t.Cleanup(func() { _, _ = listener.Close(), datagrams.Close() })
	lab.Serve(listener, func(conn net.Conn) {
		buffer := make([]byte, 1)
		for {
			if _, err := conn.Read(buffer); err != nil {
				return
			}
			_, _ = io.WriteString(conn, addr.String()+"\n")
		}
	})
	go func() {
		buffer := make([]byte, 16)
		for {
			_, from, err := datagrams.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = datagrams.WriteToUDPAddrPort([]byte(addr.String()), from)
		}
	}()
	return nil
}

// An endpointState is an endpoint and the words of its conditions: notready, notserving, terminating; here and
// elsewhere say on which node it is.
type endpointState struct {
	number int
	words  string
}

// publish writes the Service, with endpoints in these states, and waits until the kernel has it.
func (c *crossing) publish(t *testing.T, proxy *lab.Process, protocol corev1.Protocol, annotations map[string]string,
	states ...endpointState) {
	t.Helper()
	service := lab.Service("shop", "web", crossCluster[:]...)
	service.Annotations = make(map[string]string)
	for key, value := range annotations {
		service.Annotations[tracker.AnnotationPrefix+key] = value
	}
	service.Spec.Type = corev1.ServiceTypeLoadBalancer
	service.Spec.Ports[0].NodePort, service.Spec.Ports[0].Protocol = crossNodePort, protocol
	for family := range 2 {
		service.Spec.ExternalIPs = append(service.Spec.ExternalIPs, crossExternal[family].String())
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: crossBalancer[family].String()})
	}
	if c.change != nil {
		c.change(service)
	}
	objects := []any{lab.Node(lab.NodeName, crossNode[:]...), service}
	for family := range 2 {
		slice := lab.Slice("shop", "web", family, lab.FamilyOf(crossCluster[family]), nil)
		slice.Ports[0].Protocol = &protocol
		for _, state := range states {
			not := func(word string) *bool { return new(!strings.Contains(state.words, word)) }
			var node *string
			switch {
			case strings.Contains(state.words, "elsewhere"):
				node = new("another")
			case strings.Contains(state.words, "here"):
				node = new(lab.NodeName)
			}
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				NodeName:  node,
				Addresses: []string{crossEndpoint(state.number, family).String()},
				Conditions: discoveryv1.EndpointConditions{Ready: not("notready"), Serving: not("notserving"),
					Terminating: new(strings.Contains(state.words, "terminating"))},
			})
		}
		objects = append(objects, slice)
	}
	tick := fmt.Sprintf("tick-%d", ticks.Add(1))
	objects = append(objects, lab.Service("shop", tick, netip.MustParseAddr("10.96.9.9")))
	c.objects.Write(t, "objects.yaml", lab.Manifest(objects...))
	if c.tick = tick; proxy != nil {
		c.await(t)
	}
}

var ticks atomic.Int64

// await waits until the kernel has what was published last.
func (c *crossing) await(t *testing.T) {
	t.Helper()
	lab.Eventually(t, "the kernel has "+c.tick, func() bool {
		listed, _ := lab.Execute("nft", "list", "map", "ip", "kube-nft", "services")
		return strings.Contains(listed.Stdout, "shop/"+c.tick)
	})
}

// start starts kube-nft and waits until the kernel has what was published.
func (c *crossing) start(t *testing.T, flags ...string) *lab.Process {
	t.Helper()
	p := c.objects.Start(t, append([]string{"--cluster-cidr", "10.244.0.0/16,fd00:244::/64"}, flags...)...)
	c.await(t)
	return p
}

// crossTargets are all places where the Service is reached, and from where they are tried.
func (c *crossing) targets() (targets []crossTarget) {
	for family := range 2 {
		for from, in := range map[string]*lab.Namespace{"client": c.client, "pod": c.pod, "node": nil} {
			for kind, at := range map[string]netip.AddrPort{
				"cluster IP":    netip.AddrPortFrom(crossCluster[family], 80),
				"external IP":   netip.AddrPortFrom(crossExternal[family], 80),
				"load balancer": netip.AddrPortFrom(crossBalancer[family], 80),
				"node port":     netip.AddrPortFrom(crossNode[family], crossNodePort),
			} {
				targets = append(targets, crossTarget{from + " to " + kind + " " + at.String(), in, family, at})
			}
		}
	}
	return targets
}

type crossTarget struct {
	name   string
	in     *lab.Namespace // nil: the node
	family int
	at     netip.AddrPort
}

func (c *crossTarget) do(job func() error) error {
	if c.in == nil {
		return job()
	}
	return c.in.Do(job)
}

// connect opens connections until one leads to an endpoint with this number.
func (c *crossTarget) connect(t *testing.T, network string, number int) (conn net.Conn) {
	t.Helper()
	for range 200 {
		err := c.do(func() (err error) {
			dialer := net.Dialer{Timeout: crossPatience}
			conn, err = dialer.Dial(network, c.at.String())
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if name, err := exchange(conn, crossPatience); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		} else if name == crossEndpoint(number, c.family).String() {
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		_ = conn.Close()
	}
	t.Fatalf("%s: no connection to endpoint %d", c.name, number)
	return nil
}

// exchange sends a byte and returns the name of who answers.
func exchange(conn net.Conn, patience time.Duration) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("?")); err != nil {
		return "", err
	}
	buffer := make([]byte, 64)
	n, err := conn.Read(buffer)
	return strings.TrimSpace(string(buffer[:n])), err
}

// resetNext waits until the node has no entry of a connection to an endpoint any more, which goes after the commit,
// beside it. The next segment has to be answered by a reset.
func resetNext(t *testing.T, conn net.Conn, endpoint netip.Addr) error {
	t.Helper()
	from := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	family := map[bool]string{true: "ipv4", false: "ipv6"}[from.Addr().Unmap().Is4()]
	lab.Eventually(t, "the entry goes", func() bool {
		listed, _ := lab.Execute("conntrack", "-L", "-f", family, "-p", "tcp", "--sport", strconv.Itoa(int(from.Port())))
		return !strings.Contains(listed.Stdout, "src="+endpoint.String()+" ")
	})
	name, err := exchange(conn, crossPatience)
	switch {
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return nil
	case err == nil:
		return fmt.Errorf("answered by %s", name)
	}
	return err
}

// TestConnectionsOfDepartedInKernel: a client's next segment after its endpoint has left is answered by a
// reset, everywhere in both families, and by nothing without the annotation. All other connections go on.
func TestConnectionsOfDepartedInKernel(t *testing.T) {
	t.Parallel()
	c := newCrossing(t)
	reset := map[string]string{"connections-of-departed": "reset"}
	all := []endpointState{{0, ""}, {1, ""}, {2, ""}}
	c.publish(t, nil, corev1.ProtocolTCP, nil, all...)
	proxy := c.start(t)
	targets := c.targets()
	connect := func(number int) (conns []net.Conn) {
		for i := range targets {
			conns = append(conns, targets[i].connect(t, "tcp", number))
		}
		return conns
	}
	lives := func(when string, conns []net.Conn, number int) {
		t.Helper()
		for i, conn := range conns {
			if name, err := exchange(conn, crossPatience); err != nil ||
				name != crossEndpoint(number, targets[i].family).String() {
				t.Errorf("%s, %s: %q, %v; want endpoint %d", when, targets[i].name, name, err, number)
			}
		}
	}
	dies := func(when string, conns []net.Conn, number int) {
		t.Helper()
		for i, conn := range conns {
			if err := resetNext(t, conn, crossEndpoint(number, targets[i].family)); err != nil {
				t.Errorf("%s, %s: %v, want a reset", when, targets[i].name, err)
			}
		}
	}
	left, stays := connect(0), connect(1)
	c.publish(t, proxy, corev1.ProtocolTCP, nil, all[1:]...)
	lives("without the annotation, endpoint left", left, 0)
	c.publish(t, proxy, corev1.ProtocolTCP, reset, all[1:]...)
	dies("asked for after the endpoint left", left, 0)
	lives("asked for", stays, 1)

	leaving := connect(2)
	c.publish(t, proxy, corev1.ProtocolTCP, reset, all[1], endpointState{2, "notready terminating"})
	lives("terminating and serving", leaving, 2)
	c.publish(t, proxy, corev1.ProtocolTCP, reset, all[1])
	dies("endpoint left", leaving, 2)
	lives("another endpoint left", stays, 1)

	c.publish(t, proxy, corev1.ProtocolTCP, reset, all...)
	unready := connect(0)
	c.publish(t, proxy, corev1.ProtocolTCP, reset, endpointState{0, "notready notserving"}, all[1], all[2])
	dies("neither serving nor terminating", unready, 0)

	away := connect(2)
	proxy.Stop(t)
	c.publish(t, nil, corev1.ProtocolTCP, reset, all[1])
	proxy = c.start(t)
	dies("left while kube-nft was away", away, 2)
	lives("after a restart", stays, 1)

	c.publish(t, proxy, corev1.ProtocolTCP, reset)
	dies("the last endpoint left", stays, 1)
}

// TestDepartedLocalInKernel: where a traffic policy Local leaves no endpoint on this node, connections under way are
// reset and new ones dropped, with session affinity, source ranges and many addresses as well.
func TestDepartedLocalInKernel(t *testing.T) {
	t.Parallel()
	reset := map[string]string{"connections-of-departed": "reset"}
	for name, change := range map[string]func(*corev1.Service){
		"plain":    func(*corev1.Service) {},
		"affinity": affine,
		"ranges": func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "10.244.0.0/16", "2001:db8::/64", "fd00:244::/60"}
			s.Annotations[tracker.AnnotationPrefix+"source-ranges-for-node-ports"] = "true"
		},
		"maglev": func(s *corev1.Service) { s.Annotations[tracker.AnnotationPrefix+"lb-algorithm"] = "maglev" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrossing(t)
			c.change = func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy, s.Spec.InternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal,
					new(corev1.ServiceInternalTrafficPolicyLocal)
				change(s)
			}
			c.publish(t, nil, corev1.ProtocolTCP, reset, endpointState{0, "here"})
			proxy := c.start(t, "--cluster-cidr", "10.244.0.0/16,fd00:244::/48")
			targets := c.targets()
			var conns []net.Conn
			for i := range targets {
				conns = append(conns, targets[i].connect(t, "tcp", 0))
			}
			c.publish(t, proxy, corev1.ProtocolTCP, reset, endpointState{1, "elsewhere"})
			for i, conn := range conns {
				if err := resetNext(t, conn, crossEndpoint(0, targets[i].family)); err != nil {
					t.Errorf("%s: %v, want a reset", targets[i].name, err)
				}
			}
			for i := range targets {
				target := &targets[i]
				// pods and the node get all endpoints
				served := target.in != c.client && !strings.Contains(target.name, "cluster IP")
				err := target.do(func() error {
					dialer := net.Dialer{Timeout: 300 * time.Millisecond}
					if served {
						dialer.Timeout = crossPatience
					}
					conn, err := dialer.Dial("tcp", target.at.String())
					if err == nil {
						_ = conn.Close()
					}
					return err
				})
				var failure net.Error
				if timeout := errors.As(err, &failure) && failure.Timeout(); served != (err == nil) || !served && !timeout {
					t.Errorf("%s, new connection: %v, want it served: %t, dropped if not", target.name, err, served)
				}
			}
			proxy.Stop(t)
		})
	}
}

// TestUnreadyUDPInKernel: a flow stays with an endpoint that is not ready, if the Service asks for that.
func TestUnreadyUDPInKernel(t *testing.T) {
	t.Parallel()
	c := newCrossing(t)
	all := []endpointState{{0, ""}, {1, ""}}
	unready := endpointState{0, "notready notserving"}
	keep := map[string]string{"udp-unready": "keep"}
	c.publish(t, nil, corev1.ProtocolUDP, keep, all...)
	proxy := c.start(t)
	targets := c.targets()
	var flows []net.Conn
	for i := range targets {
		flows = append(flows, targets[i].connect(t, "udp", 0))
	}
	answers := func(when string, number int) {
		t.Helper()
		for i, conn := range flows {
			name, want := "", crossEndpoint(number, targets[i].family).String()
			var err error
			for deadline := time.Now().Add(lab.Patience); name != want && time.Now().Before(deadline); {
				name, err = exchange(conn, 200*time.Millisecond)
			}
			if name != want {
				t.Errorf("%s, %s: %q, %v; want %s", when, targets[i].name, name, err, want)
			}
		}
	}
	c.publish(t, proxy, corev1.ProtocolUDP, keep, unready, all[1])
	time.Sleep(300 * time.Millisecond) // a clean-up would be done by now
	answers("kept", 0)
	c.publish(t, proxy, corev1.ProtocolUDP, nil, unready, all[1])
	answers("not kept any more", 1)
}

// TestPingInKernel: the addresses of Services with endpoints answer echo requests, and no others do.
func TestPingInKernel(t *testing.T) {
	t.Parallel()
	c := newCrossing(t)
	yes := map[string]string{"ping": "true"}
	c.publish(t, nil, corev1.ProtocolTCP, nil, endpointState{0, ""})
	proxy := c.start(t)
	check := func(when string, want bool) {
		t.Helper()
		for _, target := range c.targets() {
			if target.at.Port() == crossNodePort {
				continue
			}
			if got := target.ping(t, want); got != want {
				t.Errorf("%s, %s: answered: %v, want %v", when, target.name, got, want)
			}
		}
	}
	check("not asked for", false)
	c.publish(t, proxy, corev1.ProtocolTCP, yes, endpointState{0, ""})
	check("asked for", true)
	if text := lab.Run(t, "", "nft", "list", "set", "ip", "kube-nft", "pinged"); !strings.Contains(text,
		crossExternal[0].String()) {
		t.Errorf("no address is listed:\n%s", text)
	}
	for family := range 2 { // the rest of the cluster's addresses, and the node itself, are as before
		for addr, want := range map[netip.Addr]bool{lab.After(crossCluster[family], 1): false, crossNode[family]: true,
			crossEndpoint(1, family): true} {
			other := crossTarget{in: c.client, family: family, at: netip.AddrPortFrom(addr, 0)}
			if got := other.ping(t, want); got != want {
				t.Errorf("client to %s: answered: %v, want %v", addr, got, want)
			}
		}
	}
	conn := c.targets()[0]
	conn.connect(t, "tcp", 0)
	c.publish(t, proxy, corev1.ProtocolTCP, yes)
	check("no endpoint", false)
	c.publish(t, proxy, corev1.ProtocolTCP, map[string]string{"ping": "false"}, endpointState{0, ""})
	check("not asked for any more", false)
	proxy.Stop(t)
	proxy = c.start(t, "--ping-vips")
	c.publish(t, proxy, corev1.ProtocolTCP, nil, endpointState{0, ""})
	check("by the flag", true)
	c.publish(t, proxy, corev1.ProtocolTCP, map[string]string{"ping": "false"}, endpointState{0, ""})
	check("by the flag, but not this one", false)
}

// ping sends an echo request and reports whether the address answers it; it waits long only for an answer
// that is wanted.
func (c *crossTarget) ping(t *testing.T, wanted bool) (answered bool) {
	t.Helper()
	var conn *net.IPConn
	err := c.do(func() (err error) {
		conn, err = net.ListenIP([]string{"ip4:icmp", "ip6:ipv6-icmp"}[c.family], nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kinds := [][2]byte{{8, 0}, {128, 129}}[c.family] // request and reply: RFC 792 and RFC 4443
	request := binary.BigEndian.AppendUint16([]byte{kinds[0], 0, 0, 0}, uint16(ticks.Add(1)))
	request = append(request, 0, 1)
	sum := uint32(kinds[0])<<8 + uint32(binary.BigEndian.Uint16(request[4:])) + 1
	binary.BigEndian.PutUint16(request[2:], ^uint16(sum+sum>>16)) // the kernel fills in that of ICMPv6
	if _, err := conn.WriteToIP(request, &net.IPAddr{IP: c.at.Addr().AsSlice()}); err != nil {
		return false // the node's own are refused at once
	}
	reply := make([]byte, 1500)
	patience := 150 * time.Millisecond
	if wanted {
		patience = crossPatience
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	for {
		n, from, err := conn.ReadFromIP(reply)
		if err != nil {
			return false
		}
		if n >= 8 && reply[0] == kinds[1] && string(reply[4:8]) == string(request[4:8]) &&
			from.IP.Equal(c.at.Addr().AsSlice()) {
			return true
		}
	}
}
