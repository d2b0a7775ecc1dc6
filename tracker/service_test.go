package tracker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// summary writes what a Service means as one line per port: what differs from the zero value.
func summary(d Delta) string {
	var lines []string
	for _, p := range d.Changed {
		line := fmt.Sprintf("%s %s %s:%d", p.ID, p.ID.Family, p.ClusterIP, p.Port)
		for _, part := range []struct {
			name, value string
			present     bool
		}{
			{"lb", texts(p.LoadBalancers), len(p.LoadBalancers) > 0},
			{"ext", texts(p.ExternalIPs), len(p.ExternalIPs) > 0},
			{"router", texts(p.Routers), len(p.Routers) > 0},
			{"node", fmt.Sprint(p.NodePort), p.NodePort != 0},
			{"from", texts(p.Sources), p.HasSourceRanges},
			{"internal", "Local", p.InternalLocal},
			{"external", "Local", p.ExternalLocal},
			{"affinity", p.Affinity.String(), p.Affinity != 0},
			{"health", fmt.Sprint(p.HealthCheckNodePort), p.HealthCheckNodePort != 0},
		} {
			if part.present {
				line += " " + part.name + "=" + part.value
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

const web = "shop/web:http/tcp IPv4 172.30.0.1:80"

type serviceTest struct {
	name    string
	edit    func(*corev1.Service)
	want    string // summary
	refused string // after "Service shop/web: ", if one
}

func runServiceTests(t *testing.T, config Config, tests []serviceTest) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(config)
			must(t, tr.SetNode(newNode("", "192.168.0.2", "fd00:192::2")))
			err := tr.SetService(newService(tt.edit))
			refused := strings.ReplaceAll(errorText(err), "Service shop/web: ", "")
			if refused != tt.refused {
				t.Errorf("refused\n%s\nwant\n%s", refused, tt.refused)
			}
			if got := summary(tr.Take()); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestWhichServicesAreProxied(t *testing.T) {
	label := func(value string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Labels = map[string]string{ProxyNameLabel: value} }
	}
	runServiceTests(t, Config{}, []serviceTest{
		{name: "ordinary", edit: func(*corev1.Service) {}, want: web},
		{name: "headless", edit: func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }},
		{name: "no cluster IP yet", edit: func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }},
		{name: "ExternalName with a cluster IP", edit: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeExternalName
		}},
		{name: "another proxy's", edit: label("other")},
		{name: "another proxy's, without a name", edit: label("")},
		{name: "what is ignored is not refused either", edit: func(s *corev1.Service) {
			label("other")(s)
			s.Spec.Ports[0].Port = 0
		}},
	})
	runServiceTests(t, Config{ServiceProxyName: "ours"}, []serviceTest{
		{name: "named proxy, no label", edit: func(*corev1.Service) {}},
		{name: "named proxy, own label", edit: label("ours"), want: web},
		{name: "named proxy, another label", edit: label("other")},
		{name: "named proxy, empty label", edit: label("")},
	})
}

func TestClusterIPs(t *testing.T) {
	six := "shop/web:http/tcp IPv6 fd00::1:80"
	ips := func(families []corev1.IPFamily, first string, ips ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.IPFamilies, s.Spec.ClusterIP, s.Spec.ClusterIPs = families, first, ips }
	}
	v4, v6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	runServiceTests(t, Config{}, []serviceTest{
		{name: "both", edit: ips([]corev1.IPFamily{v4, v6}, "172.30.0.1", "172.30.0.1", "fd00::1"), want: web + "\n" + six},
		{name: "both, IPv6 first", edit: ips([]corev1.IPFamily{v6, v4}, "fd00::1", "fd00::1", "172.30.0.1"),
			want: web + "\n" + six},
		{name: "IPv6 alone", edit: ips([]corev1.IPFamily{v6}, "fd00::1", "fd00::1"), want: six},
		{name: "no families: the first address", edit: ips(nil, "172.30.0.1", "172.30.0.1", "fd00::1"), want: web},
		{name: "no families, IPv6", edit: ips(nil, "fd00::1"), want: six},
		{name: "no list: clusterIP is its first", edit: ips([]corev1.IPFamily{v4, v6}, "172.30.0.1"), want: web},
		{name: "second address not there yet", edit: ips([]corev1.IPFamily{v4, v6}, "172.30.0.1", "172.30.0.1"), want: web},
		{name: "family named twice", edit: ips([]corev1.IPFamily{v4, v4}, "172.30.0.1", "172.30.0.1", "172.30.0.2"),
			want: web},
		{name: "leading zeros", edit: ips([]corev1.IPFamily{v4}, "172.030.000.001", "172.030.000.001"), want: web},
		{name: "IPv4-mapped", edit: ips(nil, "::ffff:172.30.0.1"), want: web},
		{name: "addresses in the wrong order", edit: ips([]corev1.IPFamily{v4, v6}, "fd00::1", "fd00::1", "172.30.0.1"),
			refused: `spec.clusterIPs[0]: "fd00::1" is not an IPv4 address, but spec.ipFamilies[0] is IPv4` + "\n" +
				`spec.clusterIPs[1]: "172.30.0.1" is not an IPv6 address, but spec.ipFamilies[1] is IPv6`},
		{name: "no address", edit: ips(nil, "x"), refused: `spec.clusterIP: "x" is not an IP address`},
		{name: "one bad address", edit: ips([]corev1.IPFamily{v4, v6}, "172.30.0.1", "172.30.0.1", "fd00::g"), want: web,
			refused: `spec.clusterIPs[1]: "fd00::g" is not an IP address`},
		{name: "loopback", edit: ips(nil, "127.0.0.1"), refused: `spec.clusterIP: "127.0.0.1" is a loopback address`},
		{name: "unspecified", edit: ips(nil, "::"), refused: `spec.clusterIP: "::" is the unspecified address`},
		{name: "multicast", edit: ips(nil, "224.0.0.1"), refused: `spec.clusterIP: "224.0.0.1" is a multicast address`},
		{name: "scoped", edit: ips(nil, "fe80::1%eth0"),
			refused: `spec.clusterIP: "fe80::1%eth0" has a scope, which is not supported`},
		{name: "unknown family", edit: ips([]corev1.IPFamily{v4, "IPv5"}, "172.30.0.1", "172.30.0.1", "1"), want: web,
			refused: `spec.ipFamilies[1]: "IPv5" is not IPv4 or IPv6`},
	})
}

func TestServicePorts(t *testing.T) {
	ports := func(ports ...corev1.ServicePort) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Ports = ports }
	}
	one := func(edit func(*corev1.ServicePort)) func(*corev1.Service) {
		return func(s *corev1.Service) { edit(&s.Spec.Ports[0]) }
	}
	runServiceTests(t, Config{}, []serviceTest{
		{name: "none", edit: ports()},
		{name: "unnamed, protocol unset", edit: ports(corev1.ServicePort{Port: 80}), want: "shop/web/tcp IPv4 172.30.0.1:80"},
		{name: "one number, three protocols",
			edit: ports(corev1.ServicePort{Name: "a", Port: 53, Protocol: "UDP"},
				corev1.ServicePort{Name: "b", Port: 53, Protocol: "TCP"},
				corev1.ServicePort{Name: "c", Port: 53, Protocol: "SCTP"}),
			want: "shop/web:a/udp IPv4 172.30.0.1:53\nshop/web:b/tcp IPv4 172.30.0.1:53\nshop/web:c/sctp IPv4 172.30.0.1:53"},
		{name: "node port", edit: one(func(p *corev1.ServicePort) { p.NodePort = 30080 }), want: web + " node=30080"},
		{name: "name and protocol twice", edit: ports(corev1.ServicePort{Name: "http", Port: 80},
			corev1.ServicePort{Name: "http", Port: 81, Protocol: "TCP"}), want: web,
			refused: `spec.ports[1].name: "http"/tcp is already the name of spec.ports[0]`},
		{name: "port zero", edit: one(func(p *corev1.ServicePort) { p.Port = 0 }),
			refused: "spec.ports[0].port: 0 is not in the range 1 to 65535"},
		{name: "port too large", edit: one(func(p *corev1.ServicePort) { p.Port = 65536 }),
			refused: "spec.ports[0].port: 65536 is not in the range 1 to 65535"},
		{name: "largest port", edit: one(func(p *corev1.ServicePort) { p.Port = 65535 }),
			want: "shop/web:http/tcp IPv4 172.30.0.1:65535"},
		{name: "node port negative", edit: one(func(p *corev1.ServicePort) { p.NodePort = -1 }), want: web,
			refused: "spec.ports[0].nodePort: -1 is not in the range 0 to 65535; the port has no node port"},
		{name: "protocol", edit: one(func(p *corev1.ServicePort) { p.Protocol = "tcp" }),
			refused: `spec.ports[0].protocol: "tcp" is not TCP, UDP or SCTP`},
		{name: "name with capitals", edit: one(func(p *corev1.ServicePort) { p.Name = "HTTP" }),
			refused: `spec.ports[0].name: "HTTP" is no DNS label: use a-z, 0-9 and, inside, '-'`},
		{name: "name with control characters", edit: one(func(p *corev1.ServicePort) { p.Name = "a\n\x00\u2028" }),
			refused: `spec.ports[0].name: "a\n\x00\u2028" is no DNS label: use a-z, 0-9 and, inside, '-'`},
		{name: "name too long", edit: one(func(p *corev1.ServicePort) { p.Name = strings.Repeat("a", 64) }),
			refused: `spec.ports[0].name: "` + strings.Repeat("a", 64) + `" has 64 bytes, at most 63 are allowed`},
		{name: "the others stay", edit: ports(corev1.ServicePort{Name: "http", Port: 80},
			corev1.ServicePort{Name: "-", Port: 81}), want: web,
			refused: `spec.ports[1].name: "-" is no DNS label: use a-z, 0-9 and, inside, '-'`},
	})
}

func TestExternalAddresses(t *testing.T) {
	external := func(ips ...string) func(*corev1.Service) { return func(s *corev1.Service) { s.Spec.ExternalIPs = ips } }
	ingress := func(list ...corev1.LoadBalancerIngress) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = list }
	}
	vip, proxy, router, odd := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy,
		corev1.LoadBalancerIPMode("Router"), corev1.LoadBalancerIPMode("X")
	six := "shop/web:http/tcp IPv6 fd00::1:80"
	runServiceTests(t, Config{}, []serviceTest{
		{name: "external IPs: sorted, each once", edit: external("9.9.9.9", "1.1.1.1", "9.9.9.09"),
			want: web + " ext=1.1.1.1 9.9.9.9"},
		{name: "external IPs of a family without cluster IP", edit: external("2001:db8::1", "1.1.1.1"),
			want: web + " ext=1.1.1.1"},
		{name: "external IPs by family", edit: func(s *corev1.Service) {
			dualStack(s)
			external("2001:db8::1", "1.1.1.1")(s)
		},
			want: web + " ext=1.1.1.1\n" + six + " ext=2001:db8::1"},
		{name: "invalid ones are left out", edit: external("1.1.1.1", "x", "127.0.0.1"), want: web + " ext=1.1.1.1",
			refused: `spec.externalIPs[1]: "x" is not an IP address` + "\n" +
				`spec.externalIPs[2]: "127.0.0.1" is a loopback address`},
		{name: "load balancer, whatever the type", edit: ingress(corev1.LoadBalancerIngress{IP: "1.1.1.1"}),
			want: web + " lb=1.1.1.1"},
		{name: "modes", edit: ingress(corev1.LoadBalancerIngress{IP: "1.1.1.1", IPMode: &vip},
			corev1.LoadBalancerIngress{IP: "1.1.1.2", IPMode: &proxy}), want: web + " lb=1.1.1.1"},
		{name: "unknown mode", edit: ingress(corev1.LoadBalancerIngress{IP: "1.1.1.1", IPMode: &odd}), want: web,
			refused: `status.loadBalancer.ingress[0].ipMode: "X" is not VIP, Proxy or Router; the address is left alone`},
		{name: "Router, of one address", edit: ingress(corev1.LoadBalancerIngress{IP: "1.1.1.1", IPMode: &router},
			corev1.LoadBalancerIngress{IP: "1.1.1.2", IPMode: &vip}),
			want: web + " lb=1.1.1.1 1.1.1.2 router=1.1.1.1"},
		{name: "Router, by annotation", edit: func(s *corev1.Service) {
			s.Annotations = map[string]string{"kube-nft.io/ip-mode": "Router"}
			ingress(corev1.LoadBalancerIngress{IP: "1.1.1.1"}, corev1.LoadBalancerIngress{IP: "1.1.1.2", IPMode: &proxy},
				corev1.LoadBalancerIngress{IP: "1.1.1.3", IPMode: &vip})(s)
		}, want: web + " lb=1.1.1.1 1.1.1.3 router=1.1.1.1 1.1.1.3"},
		{name: "an unknown mode by annotation changes nothing", edit: func(s *corev1.Service) {
			s.Annotations = map[string]string{"kube-nft.io/ip-mode": "router"}
			ingress(corev1.LoadBalancerIngress{IP: "1.1.1.1"})(s)
		}, want: web + " lb=1.1.1.1",
			refused: `metadata.annotations[kube-nft.io/ip-mode]: "router" is not Router or VIP; the annotation is ignored`},
		{name: "host name", edit: ingress(corev1.LoadBalancerIngress{Hostname: "lb.example"},
			corev1.LoadBalancerIngress{IP: "1.1.1.1"}), want: web + " lb=1.1.1.1"},
		{name: "twice", edit: ingress(corev1.LoadBalancerIngress{IP: "1.1.1.1"}, corev1.LoadBalancerIngress{IP: "1.1.1.1"}),
			want: web + " lb=1.1.1.1"},
		{name: "one address in several lists", edit: func(s *corev1.Service) {
			ingress(corev1.LoadBalancerIngress{IP: "172.30.0.1"})(s)
			external("172.30.0.1")(s)
		}, want: web + " lb=172.30.0.1 ext=172.30.0.1"},
		{name: "invalid", edit: ingress(corev1.LoadBalancerIngress{IP: "x"}), want: web,
			refused: `status.loadBalancer.ingress[0].ip: "x" is not an IP address`},
	})
}

func TestSourceRanges(t *testing.T) {
	ranges := func(ranges ...string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			balanced("198.51.100.1", "198.51.100.3")(s)
			s.Spec.LoadBalancerSourceRanges = ranges
		}
	}
	dual := func(ranges ...string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			dualStack(s)
			balanced("198.51.100.1", "2001:db8::1")(s)
			s.Spec.LoadBalancerSourceRanges = ranges
		}
	}
	const (
		lb      = web + " lb=198.51.100.1 198.51.100.3"
		dual4   = web + " lb=198.51.100.1"
		dual6   = "shop/web:http/tcp IPv6 fd00::1:80"
		closed6 = "spec.loadBalancerSourceRanges: no IPv6 range is valid; the IPv6 addresses of the load balancer are not " +
			"served"
	)
	runServiceTests(t, Config{}, []serviceTest{
		{name: "none", edit: ranges(), want: lb},
		{name: "one", edit: ranges("203.0.113.0/24"), want: lb + " from=203.0.113.0/24"},
		{name: "blanks, zeros, host bits", edit: ranges(" 203.0.113.7/25\t", "010.0.0.0/08"),
			want: lb + " from=10.0.0.0/8 203.0.113.0/25"},
		{name: "overlapping, nested, adjacent, repeated",
			edit: ranges("10.1.0.0/16", "10.0.0.0/16", "10.0.3.0/24", "10.0.0.0/16", "10.4.0.0/16"),
			want: lb + " from=10.0.0.0/15 10.4.0.0/16"},
		{name: "the world", edit: ranges("203.0.113.0/24", "0.0.0.0/0"), want: lb},
		{name: "the world in halves", edit: ranges("0.0.0.0/1", "128.0.0.0/1"), want: lb},
		{name: "the other family alone", edit: ranges("2001:db8::/32"), want: lb},
		{name: "the other family's world", edit: ranges("203.0.113.0/24", "::/0"), want: lb + " from=203.0.113.0/24"},
		{name: "this node inside", edit: ranges("192.168.0.0/24"),
			want: lb + " from=192.168.0.0/24 198.51.100.1/32 198.51.100.3/32"},
		{name: "this node and the addresses inside", edit: ranges("192.168.0.0/24", "198.51.100.0/24"),
			want: lb + " from=192.168.0.0/24 198.51.100.0/24"},
		{name: "each family by itself", edit: dual("203.0.113.0/24", "fd00:192::/64"),
			want: dual4 + " from=203.0.113.0/24\n" + dual6 + " lb=2001:db8::1 from=2001:db8::1/128 fd00:192::/64"},
		{name: "no load-balancer address", edit: func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"203.0.113.0/24"}
		}, want: web},
		{name: "one invalid", edit: ranges("203.0.113.0/24", "203.0.113.0/33"), want: lb + " from=203.0.113.0/24",
			refused: `spec.loadBalancerSourceRanges[1]: "203.0.113.0/33" is not a CIDR`},
		{name: "IPv4-mapped", edit: ranges("203.0.113.0/24", "::ffff:10.0.0.0/104"), want: lb + " from=203.0.113.0/24",
			refused: `spec.loadBalancerSourceRanges[1]: "::ffff:10.0.0.0/104" is IPv4-mapped: write it as an IPv4 CIDR`},
		{name: "all invalid: closed", edit: ranges("x", ""), want: web,
			refused: `spec.loadBalancerSourceRanges[0]: "x" is not a CIDR` + "\n" +
				`spec.loadBalancerSourceRanges[1]: "" is not a CIDR` + "\n" +
				"spec.loadBalancerSourceRanges: no IPv4 range is valid; the IPv4 addresses of the load balancer are not served"},
		{name: "one family's invalid: it is closed", edit: dual("203.0.113.0/24", "2001:db8::/129"),
			want:    dual4 + " from=203.0.113.0/24\n" + dual6,
			refused: `spec.loadBalancerSourceRanges[1]: "2001:db8::/129" is not a CIDR` + "\n" + closed6},
		{name: "of any family's look: those without a range are closed", edit: dual("203.0.113.0/24", "x"),
			want:    dual4 + " from=203.0.113.0/24\n" + dual6,
			refused: `spec.loadBalancerSourceRanges[1]: "x" is not a CIDR` + "\n" + closed6},
		{name: "the other family's invalid: this one has ranges", edit: dual("203.0.113.0/33", "fd00:192::/64"),
			want: web + "\n" + dual6 + " lb=2001:db8::1 from=2001:db8::1/128 fd00:192::/64",
			refused: `spec.loadBalancerSourceRanges[0]: "203.0.113.0/33" is not a CIDR` + "\n" +
				"spec.loadBalancerSourceRanges: no IPv4 range is valid; the IPv4 addresses of the load balancer are not served"},
		{name: "one family's, of which one is invalid", edit: dual("203.0.113.0/24", "203.0.113.0/33"),
			want:    dual4 + " from=203.0.113.0/24\n" + dual6 + " lb=2001:db8::1",
			refused: `spec.loadBalancerSourceRanges[1]: "203.0.113.0/33" is not a CIDR`},
	})
}

func TestTrafficPolicies(t *testing.T) {
	kind := func(kind corev1.ServiceType, edits ...func(*corev1.Service)) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type = kind
			for _, edit := range edits {
				edit(s)
			}
		}
	}
	nodePort := func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 }
	externalIP := func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"1.1.1.1"} }
	noHealthPort := func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 0 }
	odd := corev1.ServiceInternalTrafficPolicy("X")
	runServiceTests(t, Config{}, []serviceTest{
		{name: "internal", edit: internalLocal, want: web + " internal=Local"},
		{name: "internal, unknown", edit: func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &odd }, want: web,
			refused: `spec.internalTrafficPolicy: "X" is not Cluster or Local; Cluster is used`},
		{name: "external, LoadBalancer", edit: kind(corev1.ServiceTypeLoadBalancer, nodePort, externalLocal),
			want: web + " node=30080 external=Local health=32000"},
		{name: "external, NodePort", edit: kind(corev1.ServiceTypeNodePort, nodePort, externalLocal),
			want: web + " node=30080 external=Local"},
		{name: "external, ClusterIP with external IPs", edit: kind(corev1.ServiceTypeClusterIP, externalIP, externalLocal),
			want: web + " ext=1.1.1.1 external=Local"},
		{name: "external, ClusterIP without", edit: kind(corev1.ServiceTypeClusterIP, nodePort, externalLocal),
			want: web + " node=30080"},
		{name: "external, nothing external in the family", edit: kind(corev1.ServiceTypeNodePort, externalLocal), want: web},
		{name: "both", edit: kind(corev1.ServiceTypeNodePort, nodePort, externalLocal, internalLocal),
			want: web + " node=30080 internal=Local external=Local"},
		{name: "external, unknown", edit: func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "X" }, want: web,
			refused: `spec.externalTrafficPolicy: "X" is not Cluster or Local; Cluster is used`},
		{name: "no health check port", edit: kind(corev1.ServiceTypeLoadBalancer, nodePort, externalLocal, noHealthPort),
			want: web + " node=30080 external=Local",
			refused: "spec.healthCheckNodePort: 0 is not in the range 1 to 65535; load balancers cannot ask which nodes have " +
				"endpoints"},
		{name: "health check port without policy Local",
			edit: kind(corev1.ServiceTypeLoadBalancer, nodePort, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 32000 }),
			want: web + " node=30080"},
	})
}

func TestSessionAffinity(t *testing.T) {
	timeout := func(seconds *int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds},
			}
		}
	}
	const field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds: "
	runServiceTests(t, Config{}, []serviceTest{
		{name: "none", edit: func(s *corev1.Service) {
			timeout(new(int32(5)))(s)
			s.Spec.SessionAffinity = corev1.ServiceAffinityNone
		}, want: web},
		{name: "given", edit: timeout(new(int32(5))), want: web + " affinity=5s"},
		{name: "longest", edit: timeout(new(int32(86400))), want: web + " affinity=24h0m0s"},
		{name: "no timeout", edit: timeout(nil), want: web + " affinity=3h0m0s"},
		{name: "no config", edit: func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			want: web + " affinity=3h0m0s"},
		{name: "zero", edit: timeout(new(int32(0))), want: web + " affinity=3h0m0s",
			refused: field + "0 is not in the range 1 to 86400; 10800 is used"},
		{name: "too long", edit: timeout(new(int32(86401))), want: web + " affinity=3h0m0s",
			refused: field + "86401 is not in the range 1 to 86400; 10800 is used"},
		{name: "unknown", edit: func(s *corev1.Service) { s.Spec.SessionAffinity = "X" }, want: web,
			refused: `spec.sessionAffinity: "X" is not None or ClientIP; there is no affinity`},
	})
}

func TestServiceNames(t *testing.T) {
	tests := []struct{ namespace, name, refused string }{
		{"shop", "1-web", ""},
		{"", "web", `Service web: metadata.namespace: is empty; the object is ignored`},
		{"shop", "", `Service shop/: metadata.name: is empty; the object is ignored`},
		{
			"shop", "a.b",
			`Service shop/a.b: metadata.name: "a.b" is no DNS label: use a-z, 0-9 and, inside, '-'; the object is ignored`,
		},
		{
			"shop", "web\n",
			`Service shop/"web\n": metadata.name: "web\n" is no DNS label: use a-z, 0-9 and, inside, '-'; the object is ignored`,
		},
		{
			"a\tb", "web",
			`Service "a\tb"/web: metadata.namespace: "a\tb" is no DNS label: use a-z, 0-9 and, inside, '-'; the object is ignored`,
		},
		{"shop", strings.Repeat("x", 100), `Service shop/"` + strings.Repeat("x", 64) + `"...: metadata.name: "` +
			strings.Repeat("x", 64) + `"... has 100 bytes, at most 63 are allowed; the object is ignored`},
	}
	for _, tt := range tests {
		tr := newTracker(Config{})
		err := tr.SetService(newService(func(s *corev1.Service) { s.Namespace, s.Name = tt.namespace, tt.name }))
		if errorText(err) != tt.refused {
			t.Errorf("%q/%q: refused\n%v\nwant\n%s", tt.namespace, tt.name, err, tt.refused)
		}
		if got := len(tr.Take().Changed); (got == 1) != (tt.refused == "") {
			t.Errorf("%q/%q: %d ports", tt.namespace, tt.name, got)
		}
	}
}

func TestExternalIPsAreLimited(t *testing.T) {
	external := func(ips ...string) func(*corev1.Service) { return func(s *corev1.Service) { s.Spec.ExternalIPs = ips } }
	limit := func(entries ...string) Config {
		ips, err := ParseExternalIPs(entries)
		must(t, err)
		return Config{ExternalIPs: ips}
	}
	const refused = `spec.externalIPs[%d]: %s is not served: the nodes allow %s as external IPs; use a Service of type LoadBalancer, or allow the address with --external-ips`
	runServiceTests(t, limit("all"), []serviceTest{{name: "all", edit: external("9.9.9.9"), want: web + " ext=9.9.9.9"}})
	runServiceTests(t, limit("none"), []serviceTest{
		{name: "none", edit: external("9.9.9.9", "1.1.1.1"), want: web,
			refused: fmt.Sprintf(refused, 0, "9.9.9.9", "none") + "\n" + fmt.Sprintf(refused, 1, "1.1.1.1", "none")},
		{name: "a load balancer's address is another thing", edit: func(s *corev1.Service) {
			external("1.1.1.1")(s)
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "1.1.1.1"}}
		}, want: web + " lb=1.1.1.1", refused: fmt.Sprintf(refused, 0, "1.1.1.1", "none")},
		{name: "no external policy without a frontend", edit: func(s *corev1.Service) {
			external("9.9.9.9")(s)
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}, want: web, refused: fmt.Sprintf(refused, 0, "9.9.9.9", "none")},
	})
	runServiceTests(t, limit("9.9.9.0/25", "9.9.9.128/25", "2001:db8::/64"), []serviceTest{
		{name: "CIDRs", edit: func(s *corev1.Service) {
			dualStack(s)
			external("2001:db8::1", "2001:db8:1::1", "9.9.9.200", "9.9.8.1")(s)
		},
			want: web + " ext=9.9.9.200\nshop/web:http/tcp IPv6 fd00::1:80 ext=2001:db8::1",
			refused: fmt.Sprintf(refused, 1, "2001:db8:1::1", "9.9.9.0/24,2001:db8::/64") + "\n" + fmt.Sprintf(refused, 3,
				"9.9.8.1", "9.9.9.0/24,2001:db8::/64")},
	})
	for _, entries := range [][]string{{"all", "none"}, {"all", "all"}, {"1.1.1.1"}, {""}, {"x/8"},
		{"::ffff:1.1.1.0/120"}} {
		if ips, err := ParseExternalIPs(entries); err == nil {
			t.Errorf("%q is read as %s", entries, ips)
		}
	}
}

func TestInvalidFieldsAreTypedAndBounded(t *testing.T) {
	tr := newTracker(Config{})
	err := tr.SetService(newService(func(s *corev1.Service) {
		for range 100 {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "x")
		}
	}))
	if field, ok := errors.AsType[*InvalidField](err); !ok || field.Field != "spec.externalIPs[0]" {
		t.Errorf("first invalid field %v", field)
	}
	lines := strings.Split(err.Error(), "\n")
	if want := "Service shop/web: object: 84 more values were refused"; len(lines) != maxInvalid+1 ||
		lines[maxInvalid] != want {
		t.Errorf("%d lines, the last is %q, want %q", len(lines), lines[len(lines)-1], want)
	}
}

func TestServiceIdentity(t *testing.T) {
	tr := newTracker(Config{})
	must(t, tr.SetService(newService()))
	tr.Take()
	must(t, tr.SetService(newService(func(s *corev1.Service) {
		s.UID, s.CreationTimestamp = "uid-2", metav1.NewTime(started.Add(time.Hour))
	})))
	p := only(t, tr.Take())
	if p.UID != "uid-2" || !p.Created.Equal(started.Add(time.Hour)) {
		t.Errorf("got UID %s, created %v", p.UID, p.Created)
	}
}
