package legacy

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
)

// newNode moves the calling test into an empty network namespace and returns a Node with a
// lock file of its own.
func newNode(t *testing.T) Node {
	t.Helper()
	lab.New(t)
	lock := filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	return Node{Lock: lock}
}

// program returns the name of an iptables program: iptables-legacy-save.
func program(f nft.Family, b Backend, verb string) string {
	name := "iptables"
	if f == nft.IP6 {
		name = "ip6tables"
	}
	return name + map[Backend]string{Xtables: "-legacy-", Compat: "-nft-"}[b] + verb
}

// restore loads a ruleset into a backend, save lists it.
func restore(t *testing.T, f nft.Family, b Backend, text string) {
	t.Helper()
	lab.Run(t, text, program(f, b, "restore"), "-c")
}

func save(t *testing.T, f nft.Family, b Backend) string {
	t.Helper()
	return lab.Run(t, "", program(f, b, "save"), "-c")
}

// take takes the inventory and fails the test if that fails.
func take(t *testing.T, n Node) Inventory {
	t.Helper()
	inv, err := n.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// remove removes what sel selects and fails the test if that fails.
func remove(t *testing.T, n Node, sel Selector) {
	t.Helper()
	if err := n.Remove(t.Context(), sel); err != nil {
		t.Fatal(err)
	}
}

// shape is large enough to have all kinds of Services several times.
func shape(f nft.Family) legacytest.Shape {
	return legacytest.Shape{Family: f, Services: 300, Endpoints: 3}
}

// TestRemoveIPTables removes kube-proxy's iptables mode from either backend in either
// family and compares what is left, counters included, with what there was.
func TestRemoveIPTables(t *testing.T) {
	for _, b := range []Backend{Xtables, Compat} {
		for _, f := range nft.Families {
			t.Run(string(b)+"/"+f.String(), func(t *testing.T) {
				n := newNode(t)
				restore(t, f, b, shape(f).IPTables())
				before := save(t, f, b)
				if inv := take(t, n); inv.Clean() || len(inv.Parts) != 3 {
					t.Fatalf("before: clean %v, %d parts", inv.Clean(), len(inv.Parts))
				}
				remove(t, n, Selector{})
				after := save(t, f, b)
				if left := legacytest.Proxys(after); left != "" {
					t.Errorf("left of kube-proxy's:\n%s", left)
				}
				if diff := cmp.Diff(legacytest.Foreign(before), legacytest.Foreign(after)); diff != "" {
					t.Errorf("foreign rules (-before +after):\n%s", diff)
				}
				if inv := take(t, n); !inv.Clean() {
					t.Errorf("not clean: %v", inv.Plan())
				}
			})
		}
	}
}

// TestRemoveAllBackends has every kind of old state in both families at once, and checks
// that a second removal writes nothing.
func TestRemoveAllBackends(t *testing.T) {
	n := newNode(t)
	var before string
	for _, f := range nft.Families {
		for _, b := range []Backend{Xtables, Compat} {
			restore(t, f, b, shape(f).IPTables())
			before += legacytest.Foreign(save(t, f, b))
		}
		lab.Run(t, shape(f).NFTables(), "nft", "-f", "-")
	}
	before += foreignTables(t)
	remove(t, n, Selector{})
	if inv := take(t, n); !inv.Clean() || len(inv.Parts) != 12 {
		t.Errorf("%d parts, not clean: %v", len(inv.Parts), inv.Plan())
	}
	var after string
	for _, f := range nft.Families {
		for _, b := range []Backend{Xtables, Compat} {
			after += legacytest.Foreign(save(t, f, b))
		}
	}
	after += foreignTables(t)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("foreign rules (-before +after):\n%s", diff)
	}
	messages, generation, err := Messages(t.Context(), Selector{})
	if err != nil || len(messages) != 0 {
		t.Errorf("a second removal would send %d messages (%v)", len(messages), err)
	}
	remove(t, n, Selector{})
	if _, again, err := Messages(t.Context(), Selector{}); err != nil || again != generation {
		t.Errorf("a second removal committed: generation %d instead of %d (%v)", again, generation, err)
	}
}

// foreignTables lists the nf_tables tables of another program.
func foreignTables(t *testing.T) string {
	t.Helper()
	return lab.Run(t, "", "nft", "-a", "list", "table", "ip", "admin") + lab.Run(t, "", "nft", "-a", "list", "table",
		"ip6", "admin")
}

// TestSelector removes the filter table of one family first, as a takeover does.
func TestSelector(t *testing.T) {
	for _, b := range []Backend{Xtables, Compat} {
		t.Run(string(b), func(t *testing.T) {
			n := newNode(t)
			for _, f := range nft.Families {
				restore(t, f, b, shape(f).IPTables())
			}
			remove(t, n, Selector{Backends: []Backend{b}, Families: []nft.Family{nft.IP}, Tables: []string{"filter"}})
			for _, p := range take(t, n).Parts {
				if want := p.Family == "ip" && p.Table == "filter"; p.Clean() != want {
					t.Errorf("%s: clean %v, want %v", p.Name(), p.Clean(), want)
				}
			}
		})
	}
}

// TestSelectorOfProxyTables removes what refuses packets first, then the rest.
func TestSelectorOfProxyTables(t *testing.T) {
	n := newNode(t)
	lab.Run(t, shape(nft.IP).NFTables(), "nft", "-f", "-")
	before := lab.Run(t, "", "nft", "list", "table", "ip", "kube-proxy")
	sel := Selector{Backends: []Backend{ProxyTables}, Tables: []string{"filter", "mangle"}}
	remove(t, n, sel)
	after := lab.Run(t, "", "nft", "list", "table", "ip", "kube-proxy")
	var gone []string
	for line := range strings.Lines(before) {
		if !strings.Contains(after, line) {
			gone = append(gone, strings.TrimSpace(line))
		}
	}
	want := []string{"ct state new jump service-endpoints-check", "ct state new jump service-endpoints-check",
		"ct state new jump cluster-ips-check", "ct state new jump service-endpoints-check",
		"ct state new jump cluster-ips-check"}
	if diff := cmp.Diff(want, gone); diff != "" {
		t.Errorf("gone (-want +got):\n%s", diff)
	}
	if messages, _, err := Messages(t.Context(), sel); err != nil || len(messages) != 0 {
		t.Errorf("a second time, %d messages (%v)", len(messages), err)
	}
	remove(t, n, Selector{})
	if inv := take(t, n); !inv.Clean() {
		t.Errorf("not clean: %v", inv.Plan())
	}
}

// TestBlocked has foreign rules that send to kube-proxy's chains: those rules stay, and so
// do the chains, without their rules but for the mark.
func TestBlocked(t *testing.T) {
	for _, b := range []Backend{Xtables, Compat} {
		t.Run(string(b), func(t *testing.T) {
			n := newNode(t)
			s := shape(nft.IP)
			s.Borrowed = true
			restore(t, nft.IP, b, s.IPTables())
			before := take(t, n)
			remove(t, n, Selector{})
			got := legacytest.Proxys(save(t, nft.IP, b))
			if diff := cmp.Diff(blockedSave, uncount(got)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			after := take(t, n)
			if !after.Clean() {
				t.Errorf("not clean: %v", after.Plan())
			}
			if len(nat(t, before).Blocked) != 3 || len(nat(t, after).Blocked) != 3 {
				t.Errorf("blocked by %v, then by %v", nat(t, before).Blocked, nat(t, after).Blocked)
			}
		})
	}
}

// blockedSave is what iptables-save has of kube-proxy's after TestBlocked.
const blockedSave = `:KUBE-MARK-MASQ - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-W4EZ4TVQMAK4L24Q - [0:0]
-A PREROUTING -s 10.244.0.1/32 -j KUBE-SERVICES
-A OUTPUT -p tcp -m tcp --dport 1080 -m comment --comment "admin: short cut" -j KUBE-SVC-W4EZ4TVQMAK4L24Q
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
`

// uncount removes the counters of rules from the output of iptables-save -c.
func uncount(saved string) string {
	var out strings.Builder
	for line := range strings.Lines(saved) {
		if _, rule, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(line, "[") {
			line = rule
		}
		out.WriteString(line)
	}
	return out.String()
}

// nat returns the part of table ip nat.
func nat(t *testing.T, inv Inventory) Part {
	t.Helper()
	i := slices.IndexFunc(inv.Parts, func(p Part) bool { return p.Family == "ip" && p.Table == "nat" })
	if i < 0 {
		t.Fatal("no table ip nat")
	}
	return inv.Parts[i]
}

// TestNothingToRemoveCommitsNothing checks that looking and removing create no table and commit nothing where
// there is nothing.
func TestNothingToRemoveCommitsNothing(t *testing.T) {
	n := newNode(t)
	_, generation, err := Messages(t.Context(), Selector{})
	if err != nil {
		t.Fatal(err)
	}
	remove(t, n, Selector{})
	if inv := take(t, n); len(inv.Parts) != 0 {
		t.Errorf("parts %v in an empty namespace", inv.Parts)
	}
	if _, after, err := Messages(t.Context(), Selector{}); err != nil || after != generation {
		t.Errorf("generation %d instead of %d (%v)", after, generation, err)
	}
	for _, f := range nft.Families {
		if err := eachXtable(t.Context(), f, iptablesTables[:], "", func(_ *socket, table string) error {
			return errors.New("came to exist")
		}); err != nil {
			t.Error(err)
		}
	}
}

// TestElementReference has a verdict map that sends to a chain of kube-proxy's.
func TestElementReference(t *testing.T) {
	n := newNode(t)
	restore(t, nft.IP, Compat, shape(nft.IP).IPTables())
	lab.Run(t, "add map ip nat admin { type inet_service : verdict; elements = { 99 : jump KUBE-NODEPORTS }; }",
		"nft", "-f", "-")
	remove(t, n, Selector{})
	want := []Jump{{Target: "KUBE-NODEPORTS"}}
	if diff := cmp.Diff(want, nat(t, take(t, n)).Blocked); diff != "" {
		t.Errorf("blocked (-want +got):\n%s", diff)
	}
	if got := uncount(legacytest.Proxys(save(t, nft.IP, Compat))); got != ":KUBE-NODEPORTS - [0:0]\n" {
		t.Errorf("left:\n%s", got)
	}
}

// TestStaleGenerationIsRefused checks that a batch read before another program's commit is refused.
func TestStaleGenerationIsRefused(t *testing.T) {
	newNode(t)
	restore(t, nft.IP, Compat, shape(nft.IP).IPTables())
	messages, generation, err := Messages(t.Context(), Selector{})
	if err != nil {
		t.Fatal(err)
	}
	lab.Run(t, "add table ip admin", "nft", "-f", "-")
	err = commit(t.Context(), messages, generation)
	if !errors.Is(err, unix.ERESTART) {
		t.Errorf("committed after another program: %v", err)
	}
	if after, _, err := Messages(t.Context(), Selector{}); err != nil || len(after) != len(messages) {
		t.Errorf("%d messages are left of %d (%v)", len(after), len(messages), err)
	}
}

// TestOneTransaction puts the removal into a transaction that does something else too.
func TestOneTransaction(t *testing.T) {
	newNode(t)
	restore(t, nft.IP, Compat, shape(nft.IP).IPTables())
	lab.Run(t, shape(nft.IP6).NFTables(), "nft", "-f", "-")
	messages, generation, err := Messages(t.Context(), Selector{})
	if err != nil {
		t.Fatal(err)
	}
	table := nfTable{family: nft.IP, rules: ruleset{table: "ours"}}
	ours := table.message(unix.NFT_MSG_NEWTABLE, "", 0)
	if err := commit(t.Context(), append([]nft.ForeignMessage{ours}, messages...), generation); err != nil {
		t.Fatal(err)
	}
	_, after, err := Messages(t.Context(), Selector{})
	if err != nil || after != generation+1 {
		t.Errorf("generation %d after %d (%v)", after, generation, err)
	}
	if got := lab.Run(t, "", "nft", "list", "table", "ip", "ours"); got != "table ip ours {\n}\n" {
		t.Errorf("our table:\n%s", got)
	}
	if left := legacytest.Proxys(save(t, nft.IP, Compat)); left != "" {
		t.Errorf("left of kube-proxy's:\n%s", left)
	}
}
