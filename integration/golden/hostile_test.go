package golden

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/manifest"
)

// hostileServices is how many Services a hostile cluster has.
const hostileServices = 400

// fragments are what hostile texts are made of: the ends of comments, elements, sets, chains
// and tables, nft's and the shell's commands, what starts YAML documents, what does not print.
var fragments = []string{
	`"`, `\"`, `\`, "'", "`", "$(reboot)", ";", "{", "}", "}}}\n", "\n", "\r\n", "\t", "\x00", "\x7f", "\x1b[2J", " ", "#",
	"--", "\n---\n",
	`" ; flush ruleset ; "`, `" : drop }; }; }`, "\nadd table ip evil\n", `", 10.96.0.99 . tcp . 80 comment "`,
	`include "/etc/passwd"`,
	"é", "\u202e", "\u2028", "\U0001f4a5", "\xff\xfe", "@services", "$define", "*", "0x41", strings.Repeat("A", 300),
}

// hostileText puts fragments together. The underscore keeps the text from being a DNS label.
func hostileText(random *rand.Rand) string {
	text := "_"
	for range 1 + random.IntN(4) {
		text += fragments[random.IntN(len(fragments))]
	}
	return text
}

// hostilePlaces put a hostile text into a Service and its EndpointSlice. A Service that is
// refused has no place in the kernel; the others are served as if the text was not there.
var hostilePlaces = []struct {
	name    string
	refused bool
	put     func(text string, s *corev1.Service, e *discoveryv1.EndpointSlice)
}{
	{"name", true, func(text string, s *corev1.Service, e *discoveryv1.EndpointSlice) {
		s.Name, e.Labels[discoveryv1.LabelServiceName] = text+s.Name, text+s.Name
	}},
	{"namespace", true, func(text string, s *corev1.Service, e *discoveryv1.EndpointSlice) {
		s.Namespace, e.Namespace = text, text
	}},
	{"port name", true, func(text string, s *corev1.Service, e *discoveryv1.EndpointSlice) {
		s.Spec.Ports[0].Name, e.Ports[0].Name = text, &text
	}},
	{"protocol", true, func(text string, s *corev1.Service, _ *discoveryv1.EndpointSlice) {
		s.Spec.Ports[0].Protocol = corev1.Protocol(text)
	}},
	{"annotations and labels", false, func(text string, s *corev1.Service, e *discoveryv1.EndpointSlice) {
		s.Annotations, s.Labels, e.Annotations = map[string]string{text: text,
			"comment": text}, map[string]string{text: text}, map[string]string{text: text}
	}},
	{"addresses", false, func(text string, s *corev1.Service, e *discoveryv1.EndpointSlice) {
		s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges = []string{text, "192.0.2.1" + text}, []string{text}
		e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{Addresses: []string{text}})
	}},
	{"node, zone and host name", false, func(text string, _ *corev1.Service, e *discoveryv1.EndpointSlice) {
		e.Endpoints[0].NodeName, e.Endpoints[0].Zone, e.Endpoints[0].Hostname = &text, &text, &text
	}},
	{"policies and UID", false, func(text string, s *corev1.Service, _ *discoveryv1.EndpointSlice) {
		s.UID, s.Spec.ExternalTrafficPolicy = types.UID(text), corev1.ServiceExternalTrafficPolicy(text)
		s.Spec.Ports[0].AppProtocol, s.Spec.ExternalName = &text, text
	}},
	{"name of the slice", false, func(text string, s *corev1.Service, e *discoveryv1.EndpointSlice) {
		e.Name = text + e.Name
	}},
}

// firstOfHostile is the cluster IP of the first hostile Service.
var firstOfHostile = netip.MustParseAddr("10.96.0.0")

// hostileManifest returns Services and EndpointSlices, each pair with a text in one place.
func hostileManifest(random *rand.Rand) string {
	var objects []any
	for i := range hostileServices {
		name := fmt.Sprintf("web-%d", i)
		s := lab.Service("shop", name, lab.After(firstOfHostile, i))
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(20000+i)
		if i%2 == 0 {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
		e := lab.Slice("shop", name, 1, corev1.IPv4Protocol, []netip.Addr{netip.MustParseAddr("10.244.1.1")})
		hostilePlaces[i%len(hostilePlaces)].put(hostileText(random), s, e)
		objects = append(objects, s, e)
	}
	return lab.Manifest(objects...)
}

// TestHostileObjectsInKernel reads manifests with hostile texts in every place. Services that
// cannot be are refused, all others are served, and the text of the ruleset means to nft
// what our batch means to the kernel.
func TestHostileObjectsInKernel(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k, p, refused := lab.Open(t, kernel.Open), newPlay(t, scenarioSettings(t, nil)), 0
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(hostileManifest(newRandom(t))), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := manifest.Load(file, manifest.Options{Refused: func(error) { refused++ }}, p.tracker); err != nil {
		t.Fatal(err)
	}
	p.batch()
	want := p.ruleset.Want()
	for i := range hostileServices {
		_, served := want[nft.IP].Sets["cluster-ips"].Map[string(lab.After(firstOfHostile, i).AsSlice())]
		if place := hostilePlaces[i%len(hostilePlaces)]; served == place.refused {
			t.Errorf("hostile %s: served is %t", place.name, served)
		}
	}
	if refused < hostileServices/2 {
		t.Errorf("%d objects refused, want more", refused)
	}
	checkTriangle(t, k, want)
}

// plainPort makes up the number-th Service port of a cluster: every tenth one is of the
// same shape as the one ten before.
func plainPort(number int) *tracker.ServicePort {
	host := netip.AddrFrom4([4]byte{10, 96, byte(number >> 8), byte(number)})
	p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
		ID: tracker.PortID{Namespace: "shop", Service: fmt.Sprintf("web-%d", number), Port: "http",
			Protocol: tracker.TCP, Family: tracker.IPv4},
		Created:   time.Unix(1, 0),
		Port:      80,
		ClusterIP: host,
	},
		Lists: new(tracker.Lists),
	}
	switch number % 10 {
	case 1:
		p.ID.Protocol, p.Port = tracker.UDP, 53
	case 2, 3:
		p.NodePort = uint16(20000 + number)
	case 4:
		p.NodePort, p.ExternalLocal = uint16(20000+number), true
	case 5:
		p.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(number >> 8), byte(number)})}
	case 6:
		p.LoadBalancers = []netip.Addr{netip.AddrFrom4([4]byte{10, 98, byte(number >> 8), byte(number)})}
		p.HasSourceRanges, p.Sources = true, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	case 7:
		p.InternalLocal = true
	}
	return withEndpoints(p, number%10)
}

// withEndpoints gives a port so many endpoints, the first of them on this node.
func withEndpoints(p *tracker.ServicePort, n int) *tracker.ServicePort {
	q := *p
	q.Lists = new(tracker.Lists)
	for i := range n {
		host := p.ClusterIP.As4()
		q.Cluster = append(q.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(i), host[2], host[3]}), 8080))
	}
	q.Serving, q.HasEndpoints = q.Cluster, n > 0
	if n > 0 && (q.InternalLocal || q.ExternalLocal) {
		q.Local, q.OnNode = q.Cluster[:1], q.Cluster[:1]
	}
	return &q
}

// TestHostileNamesInKernel leaves out the tracker, which refuses names that are none: what
// gets past it, in whatever way, cannot inject anything either.
func TestHostileNamesInKernel(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k, random := lab.Open(t, kernel.Open), newRandom(t)
	hostile, harmless := tracker.Delta{Changed: []*tracker.ServicePort{}},
		tracker.Delta{Changed: []*tracker.ServicePort{}}
	for i := range hostileServices {
		p := plainPort(i)
		if i%3 == 0 {
			p.Affinity = time.Minute
		}
		harmless.Changed = append(harmless.Changed, p)
		hostile.Changed = append(hostile.Changed, p.With(func(spec *tracker.PortSpec) {
			spec.ID.Namespace, spec.ID.Service, spec.ID.Port, spec.UID = hostileText(random), hostileText(random)+fmt.Sprint(i),
				hostileText(random), hostileText(random)
		}))
	}
	want, twin := compile(t, hostile), compile(t, harmless)
	if got, want := frontends(want), frontends(twin); !slices.Equal(got, want) {
		t.Errorf("%d elements with hostile names, %d with harmless ones, or others", len(got), len(want))
	}
	checkTriangle(t, k, want)
}

// compile returns the ruleset of Service ports.
func compile(t *testing.T, delta tracker.Delta) nft.Tables {
	t.Helper()
	config, _ := scenarioSettings(t, nil).config(t)
	r := services.NewRuleset(config)
	r.Apply(delta)
	return r.Want()
}

// frontends lists the keys of what leads packets to Services and endpoints, sorted.
func frontends(tables nft.Tables) (keys []string) {
	for _, set := range []string{"services", "node-ports", "cluster-ips", "endpoints-tcp", "endpoints-udp"} {
		for key := range tables[nft.IP].Sets[set].Map {
			keys = append(keys, set+" "+key)
		}
	}
	slices.Sort(keys)
	return keys
}

// newRandom returns a source of random numbers whose seed is in the test's log.
func newRandom(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
