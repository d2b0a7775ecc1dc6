package main

import (
	"encoding/json"
	"maps"
	"math"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A topDocument is what the tests want of a document of top.
type topDocument struct {
	ConnectionsCounted, ActiveComplete bool
	NewPerSecond                       *float64
	IntervalSeconds                    float64
	Active, OmittedServices            int
	RefusedPerSecond                   map[string]float64
	RefusedPackets                     map[string]uint64
	Services                           []struct {
		Namespace, Name                string
		NewPerSecond, RefusedPerSecond *float64
		Active                         int
	}
}

// topWorld is program on a node that can send to anywhere and gets no answer; edit changes the ruleset.
func topWorld(t *testing.T, edit func(string) string) {
	t.Helper()
	lab.New(t)
	_, ruleset, stderr := kubeNFT(t, append(inspectionSource, "--dry-run")...)
	if ruleset == "" {
		t.Fatal(stderr)
	}
	lab.Run(t, edit(ruleset), "nft", "-f", "-")
	if err := lab.AddSink("sink"); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{
		"link set lo up", "address add 192.168.0.2/24 dev sink", "route add default dev sink",
		"-6 address add fd00::2/64 dev sink nodad", "-6 route add default dev sink",
	} {
		lab.Run(t, "", append([]string{"ip"}, strings.Fields(command)...)...)
	}
}

// An interrupter gathers text, and does something between the first Write and the next.
type interrupter struct {
	text strings.Builder // not embedded: its WriteString would go past Write
	once func()
}

func (i *interrupter) Write(text []byte) (int, error) {
	if i.once != nil {
		i.once()
		i.once = nil
	}
	return i.text.Write(text)
}

// top runs the command and returns its documents.
func top(t *testing.T, args ...string) []topDocument {
	t.Helper()
	return topWhile(t, nil, args...)
}

// topWhile is top that does something when the counters of the first document have been read.
func topWhile(t *testing.T, once func(), args ...string) (documents []topDocument) {
	t.Helper()
	stdout, stderr := &interrupter{once: once}, new(strings.Builder)
	code := execute(t.Context(), newRoot(), append([]string{"top", "-o", "json"}, args...), stdout, stderr)
	if code != exitOK || stderr.Len() > 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for line := range strings.Lines(stdout.text.String()) {
		var d topDocument
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		documents = append(documents, d)
	}
	return documents
}

// connecting returns a function that sends the first packet of a TCP connection; the socket is of this
// namespace, whichever goroutine calls it.
func connecting(t *testing.T, to string) func() {
	t.Helper()
	addr := netip.MustParseAddrPort(to)
	family, sockaddr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(addr.Port()),
		Addr: [4]byte(addr.Addr().AsSlice()[:4])})
	if addr.Addr().Is6() {
		family, sockaddr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = unix.Connect(fd, sockaddr) // refused, or under way
		_ = unix.Close(fd)             // else the packet is sent again after a second
	}
}

// TestTopRefusals: each cause of a refusal is counted, and nothing else with it.
func TestTopRefusals(t *testing.T) {
	topWorld(t, func(ruleset string) string { return ruleset })
	want := map[string]uint64{"no-endpoints": 0, "source-range": 0, "not-local": 0, "unused-port": 0, "unused-address": 0}
	check := func() {
		t.Helper()
		got := top(t, "--count", "1", "--interval", "100ms")[0].RefusedPackets
		if !maps.Equal(got, want) {
			t.Errorf("refused %v, want %v", got, want)
		}
	}
	check()
	for _, tt := range []struct{ to, cause string }{
		{"10.96.0.3:80", "no-endpoints"},
		{"198.51.100.7:80", "source-range"},
		{"[fd96::10]:80", "not-local"},
		{"10.96.0.2:54", "unused-port"},
		{"10.96.77.2:80", "unused-address"},
	} {
		connecting(t, tt.to)()
		want[tt.cause]++
		check()
	}
	connecting(t, "10.96.0.10:80")() // served
	check()
	_, stdout, _ := kubeNFT(t, "status", "-o", "json")
	var s struct {
		Tables []struct{ RefusedPackets map[string]uint64 }
	}
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || len(s.Tables) != 2 ||
		s.Tables[0].RefusedPackets["unused-port"] != 1 || s.Tables[1].RefusedPackets["not-local"] != 1 {
		t.Errorf("%v: status says %+v", err, s)
	}
}

// TestTop counts connections that come while it looks.
func TestTop(t *testing.T) {
	counting := regexp.MustCompile(`(map (?:services|node-ports) \{\n\t\ttype.*)\n`)
	topWorld(t, func(ruleset string) string { return counting.ReplaceAllString(ruleset, "$1\n\t\tcounter\n") })
	var clients []net.Conn
	for range 3 {
		client, err := net.Dial("udp", "10.96.0.2:53")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		clients = append(clients, client)
	}
	refused := []func(){connecting(t, "10.96.0.3:80"), connecting(t, "10.96.0.3:80")}
	documents := topWhile(t, func() {
		for _, client := range clients {
			_, _ = client.Write([]byte("x"))
		}
		for _, connect := range refused {
			connect()
		}
	}, "--count", "3", "--interval", "100ms", "--rows", "2")
	if len(documents) != 3 {
		t.Fatalf("%d documents", len(documents))
	}
	d := documents[1]
	times := func(rate *float64, n float64) bool { return rate != nil && math.Abs(*rate*d.IntervalSeconds-n) < 1e-6 }
	if !d.ConnectionsCounted || !d.ActiveComplete || !times(d.NewPerSecond, 3) || d.Active != 3 || len(d.Services) != 2 ||
		d.OmittedServices == 0 {
		t.Fatalf("got %+v", d)
	}
	if s := d.Services[0]; s.Namespace != "kube-system" || s.Name != "dns" || !times(s.NewPerSecond, 3) || s.Active != 3 ||
		*s.RefusedPerSecond != 0 {
		t.Errorf("the first is %+v", s)
	}
	if s := d.Services[1]; s.Name != "empty" || *s.NewPerSecond != 0 || s.Active != 0 || !times(s.RefusedPerSecond, 2) {
		t.Errorf("the second is %+v", s)
	}
	for _, d := range []*topDocument{&documents[0], &documents[2]} {
		if d.IntervalSeconds <= 0 || *d.NewPerSecond != 0 || d.RefusedPerSecond["no-endpoints"] != 0 {
			t.Errorf("while nothing came: %+v", d)
		}
	}
	if d = documents[2]; *d.NewPerSecond != 0 || d.Active != 3 || d.RefusedPerSecond["no-endpoints"] != 0 ||
		d.RefusedPackets["no-endpoints"] != 2 {
		t.Errorf("the second time: %+v", d)
	}
	d = top(t, "--count", "1", "--interval", "100ms", "-n", "shop", "--sort", "name")[0]
	if d.Active != 0 || len(d.Services) == 0 || d.Services[0].Namespace != "shop" {
		t.Errorf("of a namespace: %+v", d)
	}
	d = top(t, "--count", "1", "--interval", "100ms", "--budget", "2")[0]
	if d.Active != 2 || d.ActiveComplete {
		t.Errorf("with a budget of 2: %+v", d)
	}
}

// TestTopText: what is not counted is said, with the flag that counts it.
func TestTopText(t *testing.T) {
	topWorld(t, func(ruleset string) string { return ruleset })
	for range 2 {
		client, err := net.Dial("udp", "10.96.0.2:53")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := kubeNFT(t, "top", "--count", "1", "--interval", "100ms", "--rows", "1", "--budget", "1")
	stdout = regexp.MustCompile(`(?m)^\S+ \d+\.\d s`).ReplaceAllString(stdout, "12:00:00, 0.1 s")
	const want = `12:00:00, 0.1 s: 4 Services, at least 1 active
refused a second on this node: none
NEW/S and REFUSED/S are not counted: the daemon runs without --connection-counters
ACTIVE is incomplete: there are more than 1 conntrack entries; raise --budget to read more

SERVICE          NEW/S  ACTIVE  REFUSED/S
kube-system/dns  -      1       -
and 3 more Services; --rows 0 shows all
`
	if code != exitOK || stderr != "" || stdout != want {
		t.Errorf("exit %d, %s\n%s\nwant\n%s", code, stderr, stdout, want)
	}
	checkWidth(t, stdout)
}

// TestTopReplacesLastList: each text replaces the last one, and control characters in names do not reach the terminal.
func TestTopReplacesLastList(t *testing.T) {
	var b strings.Builder
	w := newVisibleWriter(&b)
	if err := w.Repaint("a\nb\x1b[2J\n"); err != nil {
		t.Fatal(err)
	}
	if want := "\x1b[Ha\x1b[K\nb\\u001b[2J\x1b[K\n\x1b[J"; b.String() != want || w.Rows() != 0 {
		t.Errorf("%q, want %q; %d rows", b.String(), want, w.Rows())
	}
}

func TestTopWithoutTable(t *testing.T) {
	lab.New(t)
	code, stdout, stderr := kubeNFT(t, "top")
	if code != exitTrouble || stdout != "" ||
		!strings.HasPrefix(stderr, "kube-nft: this network namespace has no table kube-nft: ") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

// TestTopEndsWithInput: top ends with its input, which here is empty, as kubectl kube-nft needs it.
func TestTopEndsWithInput(t *testing.T) {
	topWorld(t, func(ruleset string) string { return ruleset })
	if code, _, stderr := kubeNFT(t, "top", "--until-input-ends"); code != exitOK || stderr != "" {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestTopUsage(t *testing.T) {
	checkUsage(t, []usage{
		{[]string{"top", "--interval", "1ms"}, "--interval 1ms: expected 100ms to 1h0m0s"},
		{[]string{"top", "--count", "-1"}, "--count -1: expected 0 or more"},
		{[]string{"top", "--rows", "-1"}, "--rows -1: expected 0 or more"},
		{[]string{"top", "--budget", "0"}, "--budget 0: expected 1 or more"},
		{[]string{"top", "--sort", "size"}, "--sort size: expected new, active, refused or name"},
		{[]string{"top", "-o", "yaml"}, "--output yaml: expected table or json"},
	})
}
