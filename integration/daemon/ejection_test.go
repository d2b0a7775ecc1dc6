package daemon

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// A caller opens connections to the cluster IP of a crossing, from several addresses outside, at a rate.
type caller struct {
	stop   chan struct{}
	done   sync.WaitGroup
	signed bool // most SYNs have an MD5 signature, which endpoints do not expect

	mu    sync.Mutex
	calls []call
	err   error
}

// A call is a connection that was opened, or given up.
type call struct {
	client   int
	began    time.Time
	took     time.Duration
	answered bool // by the endpoint or its reset
}

// patientFor is how long a caller waits for an answer.
const patientFor = 8 * time.Second

// callers are the addresses of clients, by family.
func callerAt(family, n int) netip.Addr {
	return lab.After(pair("192.0.2.20", "2001:db8::20")[family], n)
}

// call begins to open connections to the cluster IP: so many a second, from so many clients in turns.
func (c *crossing) call(t *testing.T, family, rate, clients int) *caller {
	t.Helper()
	return c.callAt(t, rate, clients, netip.AddrPortFrom(crossCluster[family], 80))
}

// callAt is call to other addresses, in turns.
func (c *crossing) callAt(t *testing.T, rate, clients int, at ...netip.AddrPort) *caller {
	t.Helper()
	return c.callWith(t, new(caller), rate, clients, at...)
}

// callWith is callAt with a caller that has not begun.
func (c *crossing) callWith(t *testing.T, k *caller, rate, clients int, at ...netip.AddrPort) *caller {
	t.Helper()
	family := map[bool]int{true: 0, false: 1}[at[0].Addr().Is4()]
	err := c.client.Do(func() (err error) {
		for n := range clients {
			err = errors.Join(err, lab.AddAddress("eth0", netip.PrefixFrom(callerAt(family, n), []int{24, 64}[family])))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	k.stop = make(chan struct{})
	k.done.Go(func() {
		if err := c.client.Join(); err != nil { // the thread ends with this function
			k.err = err
			return
		}
		k.run(at, family, rate, clients)
	})
	t.Cleanup(func() { k.end() })
	return k
}

// end stops, and returns all calls that are over.
func (k *caller) end() []call {
	select {
	case <-k.stop:
	default:
		close(k.stop)
	}
	k.done.Wait()
	return k.calls
}

// since returns the calls that began after a time, and are over.
func (k *caller) since(at time.Time) (list []call) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.calls {
		if c.began.After(at) {
			list = append(list, c)
		}
	}
	return list
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// run opens connections without waiting for them, and looks after all of them in turns: one thread for thousands.
func (k *caller) run(at []netip.AddrPort, family, rate, clients int) {
	type pending struct {
		call
		fd int
	}
	var open []pending
	began, opened := time.Now(), 0
	domain := []int{unix.AF_INET, unix.AF_INET6}[family]
	for {
		stopping := false
		select {
		case <-k.stop:
			stopping = true
		default:
		}
		now := time.Now()
		for ; !stopping && opened < int(now.Sub(began).Seconds()*float64(rate)); opened++ {
			client := opened % clients
			fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
				_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
				err = errors.Join(unix.Bind(fd, sockaddr(netip.AddrPortFrom(callerAt(family, client), 0))))
			}
			if err == nil && k.signed && opened/clients%4 > 0 {
				err = sign(fd, at[opened%len(at)])
			}
			if err == nil {
				err = unix.Connect(fd, sockaddr(at[opened%len(at)]))
			}
			if err != nil && !errors.Is(err, unix.EINPROGRESS) {
				k.mu.Lock()
				k.err = err
				k.mu.Unlock()
				return
			}
			open = append(open, pending{call{client: client, began: now}, fd})
		}
		polled := make([]unix.PollFd, len(open))
		for i := range open {
			polled[i] = unix.PollFd{Fd: int32(open[i].fd), Events: unix.POLLOUT}
		}
		_, _ = unix.Poll(polled, 5)
		now = time.Now()
		left := open[:0]
		k.mu.Lock()
		for i := range open {
			p := &open[i]
			switch {
			case polled[i].Revents != 0:
				value, _ := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_ERROR)
				p.answered = value == 0 || value == int(unix.ECONNREFUSED) || value == int(unix.ECONNRESET)
			case now.Sub(p.began) > patientFor || stopping:
			default:
				left = append(left, *p)
				continue
			}
			p.took = now.Sub(p.began)
			if !stopping || p.answered {
				k.calls = append(k.calls, p.call)
			}
			_ = unix.Close(p.fd)
		}
		k.mu.Unlock()
		if open = left; stopping {
			return
		}
		if len(polled) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// sign has the kernel sign what a socket sends to an address (RFC 2385).
func sign(fd int, to netip.AddrPort) error {
	signature := unix.TCPMD5Sig{Addr: unix.SockaddrStorage{Family: unix.AF_INET}, Keylen: 1}
	*(*[4]byte)(signature.Addr.Data[2:]) = to.Addr().As4() // after the port, which does not count
	return unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &signature)
}

// A toll counts calls: slow ones had to send their SYN again.
type toll struct{ all, failed, slow int }

func tollOf(calls []call) (n toll) {
	for _, c := range calls {
		n.all++
		switch {
		case !c.answered:
			n.failed++
		case c.took > 500*time.Millisecond:
			n.slow++
		}
	}
	return n
}

// disturb makes the link to the pods do something to the packets that come to them, in nft's words; empty: nothing.
// Rules that begin with "out:" are for what the pods send, those with "client:" for what comes to the clients.
func (c *crossing) disturb(t *testing.T, rules string) {
	t.Helper()
	hook, in := "prerouting", c.pods
	if back, ok := strings.CutPrefix(rules, "out:"); ok {
		hook, rules = "output", back
	} else if back, ok := strings.CutPrefix(rules, "client:"); ok {
		in, rules = c.client, back
	}
	text := "table inet trouble\ndelete table inet trouble\n"
	if rules != "" {
		text += "table inet trouble {\n" +
			"set seen { type ipv4_addr . inet_service; timeout 20s; flags dynamic; size 65535; }\n" +
			"set down { type ipv4_addr; flags timeout; }\n" +
			"chain trouble { type filter hook " + hook + " priority -300;\n" + rules + "\n}\n}\n"
	}
	loadRules(t, in, text)
}

// loadRules has nft read a text in a namespace.
func loadRules(t *testing.T, in *lab.Namespace, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.nft")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out lab.Output
	err := in.Do(func() (err error) {
		out, err = lab.Execute("nft", "-f", file)
		return err
	})
	if err != nil || out.Code != 0 {
		t.Fatalf("%v\n%s", err, out.Stderr)
	}
}

// ejectedEndpoints asks the daemon which endpoints it leaves out or tries again.
func ejectedEndpoints(t *testing.T) (list []string) {
	t.Helper()
	var status struct {
		Daemon struct {
			Ejected []struct{ Endpoint string }
		}
	}
	out := runProxy(t, "status", "-o", "json")
	if err := json.Unmarshal([]byte(out.Stdout), &status); err != nil {
		t.Fatalf("%v\n%s%s", err, out.Stdout, out.Stderr)
	}
	for _, e := range status.Daemon.Ejected {
		list = append(list, e.Endpoint)
	}
	return list
}

var ejectionFor = flag.Duration("ejection-for", 8*time.Second,
	"how long to wait for endpoints that must not be left out")

// dropped drops all packets to an endpoint.
func dropped(n int) string {
	return fmt.Sprintf("ip daddr %s drop\nip6 daddr %s drop", crossEndpoint(n, 0), crossEndpoint(n, 1))
}

// redirect lets the pods redirect connections that come to them.
func (c *crossing) redirect(t *testing.T, rule string) {
	t.Helper()
	loadRules(t, c.pods, "table ip elsewhere {\nchain in {\ntype nat hook prerouting priority -100\n"+rule+"\n}\n}\n")
}

// redirectEndpoint sends what comes to endpoint 1 to another port of its.
func (c *crossing) redirectEndpoint(t *testing.T, port int) {
	t.Helper()
	c.redirect(t, fmt.Sprintf("ip daddr %[1]s tcp dport %[2]d dnat to %[1]s:%[3]d", crossEndpoint(1, 0), lab.EndpointPort,
		port))
}

// late makes endpoint 1 get all packets so much later.
func late(delay time.Duration) func(*testing.T, *crossing) {
	return func(t *testing.T, c *crossing) {
		tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			lab.SkipOrFail(t, "open /dev/net/tun: %v", err)
		}
		request, err := unix.NewIfreq("late")
		if err == nil {
			request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = errors.Join(unix.IoctlIfreq(tun, unix.TUNSETIFF, request), unix.SetNonblock(tun, true), lab.SetUp("late"))
		}
		var out int
		err = errors.Join(err, c.pods.Do(func() (err error) {
			out, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			return err
		}))
		if err != nil {
			t.Fatal(err)
		}
		lab.Run(t, "", "ip", "route", "add", crossEndpoint(1, 0).String(), "dev", "late")
		device := os.NewFile(uintptr(tun), "late")
		var reader sync.WaitGroup
		t.Cleanup(func() {
			_ = device.Close()
			reader.Wait()
			time.AfterFunc(2*delay, func() { _ = unix.Close(out) })
		})
		reader.Go(func() {
			for {
				packet := make([]byte, 2048)
				n, err := device.Read(packet)
				if err != nil {
					return
				}
				time.AfterFunc(delay, func() {
					_ = unix.Sendto(out, packet[:n], 0, &unix.SockaddrInet4{Addr: crossEndpoint(1, 0).As4()})
				})
			}
		})
	}
}

// hasty makes endpoint 1 close connections as soon as it has them; with a reset, if asked.
func hasty(reset bool) func(*testing.T, *crossing) {
	return func(t *testing.T, c *crossing) {
		const port = lab.EndpointPort + 1
		err := c.pods.Do(func() error {
			listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(crossEndpoint(1, 0), port)))
			if err != nil {
				return err
			}
			var accepted atomic.Bool
			t.Cleanup(func() {
				if _ = listener.Close(); !accepted.Load() {
					t.Error("no connection came to the port that closes them")
				}
			})
			lab.Serve(listener, func(conn net.Conn) {
				accepted.Store(true)
				if reset {
					_ = conn.(*net.TCPConn).SetLinger(0)
				}
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		c.redirectEndpoint(t, port)
	}
}

// full makes endpoint 1 accept no connection: the queue of its port is full as soon as one waits there.
func full(t *testing.T, c *crossing) {
	const port = lab.EndpointPort + 1
	err := c.pods.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: crossEndpoint(1, 0).As4()})
		return errors.Join(err, unix.Listen(fd, 0))
	})
	if err != nil {
		t.Fatal(err)
	}
	c.redirectEndpoint(t, port)
}

// many makes the pods answer at the addresses of 500 endpoints, too.
func many(t *testing.T, c *crossing) {
	lab.Run(t, "", "ip", "route", "add", "10.244.2.0/23", "via", crossEndpoint(0, 0).String())
	c.redirect(t, fmt.Sprintf("ip daddr 10.244.2.0/23 tcp dport %d redirect", lab.EndpointPort))
}

// gone takes the address of endpoint 1 off its link, as a node does that dies: nothing answers ARP.
func gone(t *testing.T, c *crossing) {
	err := c.pods.Do(func() error { return lab.RemoveAddress("eth0", netip.PrefixFrom(crossEndpoint(1, 0), 24)) })
	if err != nil {
		t.Fatal(err)
	}
}

// flaps keeps packets from endpoint 1 for 0.9 s, about every two seconds. The kernel ends that: it is never longer.
func flaps(t *testing.T, c *crossing, turn int) {
	if turn%7 == 0 {
		loadRules(t, c.pods, "add element inet trouble down { "+crossEndpoint(1, 0).String()+" timeout 900ms }\n")
	}
}

// linkFlaps sets the link to all endpoints down for 0.3 s, about every two seconds. The kernel may need another second
// to find the neighbours, for one of them longer than for others: with more the endpoint would rightly be left out.
func linkFlaps(t *testing.T, c *crossing, turn int) {
	err := c.pods.Do(func() error {
		switch turn % 7 {
		case 0:
			return lab.SetDown("eth0")
		case 1:
			return errors.Join(lab.SetUp("eth0"), lab.AddRoute("eth0", netip.MustParsePrefix("0.0.0.0/0"), crossGateway[0]))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestEjectionInKernel disturbs the links to endpoints, and says which are left out.
func TestEjectionInKernel(t *testing.T) {
	for _, tt := range []struct {
		name          string
		rules         string
		family        int
		rate, clients int
		annotation    string
		flags         []string
		out           bool // endpoint 1 is left out
		local         bool // the policy is Local, and endpoint 2 elsewhere
		alone         bool // endpoint 1 is the only one
		churn         bool // endpoint 2 comes and goes
		many          bool // there are 500 endpoints
		slow          bool // some connections have to wait
		// More trouble: at first, and three times a second.
		also  func(*testing.T, *crossing)
		again func(t *testing.T, c *crossing, turn int)
	}{
		{name: "dropped, one of 500", rules: dropped(1), rate: 300, clients: 20, annotation: "true", many: true,
			also: many, out: true},
		{name: "its address is gone", also: gone, rate: 60, clients: 5, annotation: "true", out: true},
		{name: "answers after 1.5 s", also: late(1500 * time.Millisecond), rate: 60, clients: 5, annotation: "true",
			slow: true},
		{name: "accepts and closes", also: hasty(false), rate: 60, clients: 5, annotation: "true"},
		{name: "accepts and resets", also: hasty(true), rate: 60, clients: 5, annotation: "true"},
		{name: "its queue is full", also: full, rate: 60, clients: 5, annotation: "true", out: true},
		{name: "flaps", rules: "ip daddr @down drop", again: flaps, rate: 60, clients: 5, annotation: "true",
			slow: true},
		{name: "the link to all flaps", again: linkFlaps, rate: 60, clients: 5, annotation: "true",
			slow: true},
		{name: "the way back is dropped", rules: "out:ip saddr " + crossEndpoint(1, 0).String() + " drop", rate: 60,
			clients: 5, annotation: "true", out: true},
		{name: "clients that only send SYNs", rules: "client:tcp sport 80 ip daddr " + callerAt(0, 0).String() + "/30 drop",
			rate: 60, clients: 6, annotation: "true"},
		{name: "dropped, policy Local", rules: dropped(1), rate: 60, clients: 5, annotation: "true", local: true, out: true},
		{name: "dropped, the only one", rules: dropped(1), rate: 60, clients: 5, annotation: "true", alone: true},
		{name: "loss of 5 %, others come and go", rules: "tcp dport 8080 numgen random mod 100 < 10 drop", rate: 100,
			clients: 3, annotation: "true", churn: true},
		{name: "dropped", rules: dropped(1), rate: 60, clients: 5, annotation: "true", out: true},
		{name: "dropped, IPv6", rules: dropped(1), family: 1, rate: 60, clients: 5, annotation: "true", out: true},
		{name: "dropped, one client", rules: dropped(1), rate: 60, clients: 1, annotation: "true", out: true},
		{name: "dropped, by the flag", rules: dropped(1), rate: 60, clients: 5, flags: []string{"--eject-endpoints"},
			out: true},
		{name: "dropped, by the flag, but not this one", rules: dropped(1), rate: 60, clients: 5, annotation: "false",
			flags: []string{"--eject-endpoints"}},
		{name: "dropped, not asked for", rules: dropped(1), rate: 60, clients: 5},
		{name: "all dropped", rules: dropped(0) + "\n" + dropped(1) + "\n" + dropped(2), rate: 60, clients: 5,
			annotation: "true"},
		{name: "a client is dropped", rules: "ip saddr " + callerAt(0, 0).String() + " drop", rate: 60, clients: 3,
			annotation: "true"},
		{name: "a client is dropped at one endpoint",
			rules: "ip saddr " + callerAt(0, 0).String() + " ip daddr " + crossEndpoint(1, 0).String() + " drop", rate: 60,
			clients: 3, annotation: "true"},
		{name: "reset", rules: "ip daddr " + crossEndpoint(1, 0).String() + " counter reject with tcp reset", rate: 60,
			clients: 3, annotation: "true"},
		{name: "the second SYN is answered", rules: "ip daddr " + crossEndpoint(1, 0).String() + " tcp flags & (syn|ack) " +
			"== syn ip saddr . tcp sport != @seen add @seen { ip saddr . tcp sport } drop", rate: 60, clients: 3,
			annotation: "true"},
		{name: "loss of 5 %", rules: "tcp dport 8080 numgen random mod 100 < 10 drop", rate: 100, clients: 3,
			annotation: "true"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCrossing(t)
			asks := map[string]string{}
			if tt.annotation != "" {
				asks["eject"] = tt.annotation
			}
			endpoints := []endpointState{{0, ""}, {1, ""}, {2, ""}}
			at := netip.AddrPortFrom(crossCluster[tt.family], 80)
			switch {
			case tt.local:
				endpoints = []endpointState{{0, "here"}, {1, "here"}, {2, "elsewhere"}}
				at = netip.AddrPortFrom(crossBalancer[tt.family], 80)
				c.change = func(service *corev1.Service) {
					service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				}
			case tt.alone:
				endpoints = endpoints[1:2]
			case tt.many:
				for n := range 497 {
					endpoints = append(endpoints, endpointState{492 + n, ""}) // from 10.244.2.0 on
				}
			}
			c.publish(t, nil, corev1.ProtocolTCP, asks, endpoints...)
			proxy := c.start(t, tt.flags...)
			calls := c.callAt(t, tt.rate, tt.clients, at)
			time.Sleep(time.Second)
			c.disturb(t, tt.rules)
			if tt.also != nil {
				tt.also(t, c)
			}
			if !tt.out {
				for end, n := time.Now().Add(*ejectionFor), 0; time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
					if tt.again != nil {
						tt.again(t, c, n)
					}
					if n++; tt.churn {
						words := map[bool]string{true: "notready", false: ""}[n%2 > 0]
						c.publish(t, proxy, corev1.ProtocolTCP, asks, endpointState{0, ""}, endpointState{1, ""}, endpointState{2, words})
					}
					if strings.Contains(proxy.Stderr(), "an endpoint does not answer") {
						t.Fatalf("%v are left out\n%s", ejectedEndpoints(t), proxy.Stderr())
					}
				}
				n := tollOf(calls.end())
				if n.all == 0 || calls.err != nil || tt.slow && n.slow == 0 {
					t.Errorf("%+v, %v", n, calls.err)
				}
				if got := ejectedEndpoints(t); len(got) > 0 {
					t.Errorf("%v are left out\n%s", got, proxy.Stderr())
				}
				t.Logf("none of %+v led to an ejection", n)
				return
			}
			want := netip.AddrPortFrom(crossEndpoint(1, tt.family), lab.EndpointPort).String()
			lab.Eventually(t, want+" is left out", func() bool { return slices.Equal(ejectedEndpoints(t), []string{want}) })
			from := time.Now()
			lab.Eventually(t, "100 connections without it", func() bool { return len(calls.since(from)) > 100 })
			if n := tollOf(calls.since(from)); n.failed > 0 {
				t.Errorf("afterwards: %+v", n)
			}
			get := runProxy(t, "get", "endpoints", "shop/web")
			if !strings.Contains(get.Stderr, "endpoint "+want+" of shop/web:http") {
				t.Errorf("get endpoints says\n%s", get.Stderr)
			}
			explained := runProxy(t, "explain", callerAt(tt.family, 0).String(), at.String()+"/tcp")
			if !strings.Contains(explained.Stdout, "Ejected       endpoint "+want+" of shop/web:http") {
				t.Errorf("explain says\n%s%s", explained.Stdout, explained.Stderr)
			}
			top := runProxy(t, "top", "--count", "1", "--interval", "100ms")
			if !strings.Contains(top.Stdout, "endpoints that do not answer and get no new connections: 1;") {
				t.Errorf("top says\n%s%s", top.Stdout, top.Stderr)
			}
			if log := proxy.Stderr(); !strings.Contains(log, "an endpoint does not answer: new connections go to others") {
				t.Errorf("the log says\n%s", log)
			}
			// Kubernetes has the last word.
			unready := slices.Clone(endpoints)
			unready[1].words += " notready"
			c.publish(t, proxy, corev1.ProtocolTCP, asks, unready...)
			c.disturb(t, "")
			c.publish(t, proxy, corev1.ProtocolTCP, asks, endpoints...)
			lab.Eventually(t, "nothing is left out", func() bool { return len(ejectedEndpoints(t)) == 0 })
			if n := tollOf(calls.end()); calls.err != nil {
				t.Errorf("%+v, %v", n, calls.err)
			} else {
				t.Logf("all in all %+v", n)
			}
		})
	}
}

// TestEjectionOnPurpose: two clients have healthy endpoints left out, by SYNs that no endpoint answers: no more than
// half, and none if the Service does not ask.
func TestEjectionOnPurpose(t *testing.T) {
	t.Parallel()
	c := newCrossing(t)
	endpoints := []endpointState{{0, ""}, {1, ""}, {2, ""}}
	c.publish(t, nil, corev1.ProtocolTCP, map[string]string{"eject": "true"}, endpoints...)
	proxy := c.start(t)
	calls := c.callWith(t, &caller{signed: true}, 8, 2, netip.AddrPortFrom(crossCluster[0], 80))
	lab.Eventually(t, "an endpoint is left out", func() bool {
		n := len(ejectedEndpoints(t))
		if n > 1 {
			t.Errorf("%d of 3 endpoints are left out", n)
		}
		return n > 0
	})
	c.publish(t, proxy, corev1.ProtocolTCP, map[string]string{"eject": "false"}, endpoints...)
	lab.Eventually(t, "all are back", func() bool { return len(ejectedEndpoints(t)) == 0 })
	if n := tollOf(calls.end()); calls.err != nil || n.failed == n.all {
		t.Errorf("%+v, %v", n, calls.err)
	}
}

var (
	tollRate    = flag.Int("toll-rate", 20, "connections a second of TestEjectionToll")
	tollFor     = flag.Duration("toll-for", 12*time.Second, "how long an endpoint is dead in TestEjectionToll")
	tollClients = flag.Int("toll-clients", 5, "clients of TestEjectionToll")
)

// TestEjectionToll cuts off one of three endpoints, and counts the connections that fail or are slow while Kubernetes
// calls it ready, with and without ejection.
func TestEjectionToll(t *testing.T) {
	tolls := make(map[string]toll)
	for _, eject := range []string{"false", "true"} {
		t.Run("eject "+eject, func(t *testing.T) {
			c := newCrossing(t)
			c.publish(t, nil, corev1.ProtocolTCP, map[string]string{"eject": eject}, endpointState{0, ""}, endpointState{1, ""},
				endpointState{2, ""})
			proxy := c.start(t)
			calls := c.call(t, 0, *tollRate, *tollClients)
			lab.Eventually(t, "endpoints answer", func() bool { return tollOf(calls.since(time.Time{})).all > 3 })
			before, began, worked := len(calls.since(time.Time{})), time.Now(), cpuTime(t, proxy.PID())
			c.disturb(t, dropped(1))
			time.Sleep(*tollFor)
			took, cpu := time.Since(began), cpuTime(t, proxy.PID())-worked
			n := tollOf(calls.end()[before:])
			if calls.err != nil {
				t.Fatal(calls.err)
			}
			tolls[eject] = n
			t.Logf("%d connections a second for %s: %d, failed %d, slow %d; the daemon worked %.1f %% of that time", *tollRate,
				took.Round(time.Second), n.all, n.failed, n.slow, 100*cpu.Seconds()/took.Seconds())
		})
	}
	if len(tolls) < 2 {
		t.Skip("a part did not run")
	}
	with, without := tolls["true"], tolls["false"]
	if without.failed == 0 || with.failed >= without.failed {
		t.Errorf("with ejection %+v, without %+v", with, without)
	}
}

// endpointOf opens a connection from a client's address and port, and returns the endpoint that answers; none if none
// does within a second.
func (c *crossing) endpointOf(t *testing.T, network string, from netip.AddrPort) (endpoint string) {
	t.Helper()
	at := netip.AddrPortFrom(crossCluster[0], 80)
	err := c.client.Do(func() error {
		dialer := net.Dialer{Timeout: time.Second, LocalAddr: net.TCPAddrFromAddrPort(from)}
		if network == "udp" {
			dialer.LocalAddr = net.UDPAddrFromAddrPort(from)
		}
		conn, err := dialer.Dial(network, at.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		endpoint, err = exchange(conn, time.Second)
		return err
	})
	if err != nil {
		return ""
	}
	return endpoint
}

// answererOf returns the endpoint that answers the next connection of a caller's client.
func (c *crossing) answererOf(t *testing.T, client int) (endpoint string) {
	t.Helper()
	lab.Eventually(t, "the client is answered", func() bool {
		endpoint = c.endpointOf(t, "tcp", netip.AddrPortFrom(callerAt(0, client), 0))
		return endpoint != ""
	})
	return endpoint
}

// TestEjectionAndAffinityInKernel: a client whose endpoint is left out is sent elsewhere, and stays there when the
// endpoint is back; the others stay where they were.
func TestEjectionAndAffinityInKernel(t *testing.T) {
	c := newCrossing(t)
	c.change = affine
	asks := map[string]string{"eject": "true"}
	c.publish(t, nil, corev1.ProtocolTCP, asks, endpointState{0, ""}, endpointState{1, ""}, endpointState{2, ""})
	proxy := c.start(t)
	const clients = 40
	calls := c.call(t, 0, 60, clients)
	lab.Eventually(t, "all clients are answered", func() bool {
		answered := make(map[int]bool)
		for _, call := range calls.since(time.Time{}) {
			answered[call.client] = answered[call.client] || call.answered
		}
		return len(answered) == clients
	})
	at := make(map[int]string)
	perEndpoint := make(map[string]int)
	for n := range clients {
		at[n] = c.answererOf(t, n)
		perEndpoint[at[n]]++
	}
	dead := crossEndpoint(1, 0).String()
	if perEndpoint[dead] < 2 || len(perEndpoint) < 2 { // about one of ten million runs
		t.Fatalf("no two clients have %s: %v", dead, at)
	}
	c.disturb(t, dropped(1))
	lab.Eventually(t, dead+" is left out", func() bool { return len(ejectedEndpoints(t)) == 1 })
	now := make(map[int]string)
	for n := range clients {
		now[n] = c.answererOf(t, n)
		if at[n] != dead && now[n] != at[n] || now[n] == dead {
			t.Errorf("client %d had %s and has %s\n%s", n, at[n], now[n], proxy.Stderr())
		}
	}
	c.awaitReturn(t)
	for n := range clients {
		if got := c.answererOf(t, n); got != now[n] {
			t.Errorf("client %d had %s while an endpoint was left out, and has %s", n, now[n], got)
		}
	}
}

// awaitReturn lets all packets pass again, and waits until no endpoint is left out or tried.
func (c *crossing) awaitReturn(t *testing.T) {
	t.Helper()
	c.disturb(t, "")
	lab.Eventually(t, "nothing is left out", func() bool {
		time.Sleep(300 * time.Millisecond)
		return len(ejectedEndpoints(t)) == 0
	})
}

// TestEjectionAndMaglevInKernel: with a hash, connections that had another endpoint keep it, and those of an endpoint
// that is back have it again.
func TestEjectionAndMaglevInKernel(t *testing.T) {
	c := newCrossing(t)
	asks := map[string]string{"eject": "true", "lb-algorithm": "maglev", "hash": "source-ip"}
	c.publish(t, nil, corev1.ProtocolTCP, asks, endpointState{0, ""}, endpointState{1, ""}, endpointState{2, ""})
	c.start(t)
	const clients = 24
	c.call(t, 0, 100, clients)
	dead := crossEndpoint(1, 0).String()
	at := make(map[int]string)
	moved := 0
	for n := range clients {
		at[n] = c.answererOf(t, n)
		if at[n] == dead {
			moved++
		}
	}
	if moved == 0 {
		t.Fatalf("no client has %s: %v", dead, at) // the hash is the same in each run
	}
	c.disturb(t, dropped(1))
	lab.Eventually(t, dead+" is left out", func() bool { return len(ejectedEndpoints(t)) == 1 })
	for n := range clients {
		now := c.answererOf(t, n)
		if at[n] != dead && now != at[n] || now == dead {
			t.Errorf("client %d had %s and has %s", n, at[n], now)
		}
	}
	c.awaitReturn(t)
	for n := range clients {
		if got := c.answererOf(t, n); got != at[n] {
			t.Errorf("client %d had %s at first, and has %s", n, at[n], got)
		}
	}
}

// TestEjectionLeavesUDPAlone: a Service of UDP keeps an endpoint that does not answer.
func TestEjectionLeavesUDPAlone(t *testing.T) {
	c := newCrossing(t)
	c.publish(t, nil, corev1.ProtocolUDP, map[string]string{"eject": "true"}, endpointState{0, ""}, endpointState{1, ""})
	c.start(t)
	c.disturb(t, dropped(1))
	answered, silent := 0, 0
	for began := time.Now(); time.Since(began) < *ejectionFor || answered == 0 || silent == 0; {
		if time.Since(began) > lab.Patience {
			t.Fatalf("%d were answered, %d not", answered, silent)
		}
		if c.endpointOf(t, "udp", netip.AddrPortFrom(crossClient[0], 0)) == "" {
			silent++
		} else {
			answered++
		}
		if got := ejectedEndpoints(t); len(got) > 0 {
			t.Fatalf("%v are left out", got)
		}
	}
}

// TestEjectionOf10000Services: 10,000 Services ask, their connections wait for one of three endpoints, and looks take a
// quarter of a CPU at most.
func TestEjectionOf10000Services(t *testing.T) {
	c := newCrossing(t)
	var endpoints []netip.Addr
	for n := range 3 {
		endpoints = append(endpoints, crossEndpoint(n, 0))
	}
	var text strings.Builder
	var at []netip.AddrPort
	for n := range 10_000 {
		at = append(at, netip.AddrPortFrom(lab.After(netip.MustParseAddr("10.97.0.1"), n), 80))
		text.WriteString(lab.Web(fmt.Sprint("web-", n), at[n].Addr(), endpoints))
	}
	c.objects.Write(t, "many.yaml", text.String())
	c.publish(t, nil, corev1.ProtocolTCP, nil)
	proxy := c.start(t, "--eject-endpoints")
	calls := c.callAt(t, 400, 20, at...)
	c.disturb(t, dropped(1))
	table := lab.Open(t, conntrack.Open)
	waiting := func() int {
		flows, err := table.Flows(t.Context(), conntrack.Filter{Family: tracker.IPv4, Has: conntrack.DestinationNAT,
			Lacks: conntrack.SeenReply}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(flows)
	}
	lab.Eventually(t, "1,000 connections wait", func() bool { return waiting() > 1000 })
	began, worked := time.Now(), cpuTime(t, proxy.PID())
	time.Sleep(*ejectionFor)
	took, cpu := time.Since(began), cpuTime(t, proxy.PID())-worked
	t.Logf("%d connections wait; the daemon worked %.1f %% of %s", waiting(), 100*cpu.Seconds()/took.Seconds(), took)
	if cpu > took*3/10 { // for other things, too
		t.Errorf("it worked %s of %s", cpu, took)
	}
	if calls.end(); calls.err != nil {
		t.Error(calls.err)
	}
}
