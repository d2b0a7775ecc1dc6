package migrate

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// newClient returns a client in a new namespace.
func newClient(t *testing.T) *kernel.Client {
	t.Helper()
	lab.New(t)
	return lab.Open(t, kernel.Open)
}

// commitTables commits the tables of a cluster without Services and returns them.
func commitTables(t *testing.T, client *kernel.Client) nft.Tables {
	t.Helper()
	var nodeAddresses []netip.Addr
	ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 16})
	ruleset.Apply(tracker.Delta{})
	for i := range 3 {
		nodeAddresses = append(nodeAddresses, netip.AddrFrom4([4]byte{192, 168, 0, byte(2 + i)}),
			netip.MustParseAddr("fd00::2:"+strconv.Itoa(i)))
	}
	ruleset.SetNodePortAddresses(nodeAddresses)
	want := ruleset.Want()
	if err := client.Commit(t.Context(), change.Diff(nil, want)); err != nil {
		t.Fatal(err)
	}
	return want
}

// TestFirstKernel: commits carry the removal of what can refuse packets until our tables are verified.
// Then Remove removes the rest at the same time, on a goroutine of its own.
func TestFirstKernel(t *testing.T) {
	client := newClient(t)
	lab.Run(t, legacytest.Shape{Family: nft.IP, Services: 3, Endpoints: 2}.IPTables(), "iptables-nft-restore")
	want := commitTables(t, client)
	take, _ := takeover(t, client)
	for _, verified := range []bool{false, true} {
		messages, generation, err := take.First(t.Context(), want, "")
		if (len(messages) > 0) != !verified || generation == 0 || err != nil {
			t.Errorf("verified %t: %d messages, generation %d, %v", verified, len(messages), generation, err)
		}
		if _, err := take.Verify(t.Context(), want); err != nil {
			t.Error(err)
		}
	}
}

func TestVerifyKernel(t *testing.T) {
	client := newClient(t)
	want := commitTables(t, client)
	looked, err := verify(t.Context(), client, want)
	if err != nil || looked != 6 { // the addresses for node ports, in both families
		t.Errorf("looked %d elements up, %v", looked, err)
	}
	lab.Run(t, "", "nft", "delete element ip6 kube-nft "+layout.NodePortAddressesSet+" { fd00::2:1 }")
	_, err = verify(t.Context(), client, want)
	wanted := "the kernel's tables differ: add element ip6 kube-nft " + layout.NodePortAddressesSet +
		" { fd00::2:1 } is missing, and 0 operations more"
	if err == nil || err.Error() != wanted {
		t.Errorf("error %q, want %q", err, wanted)
	}
}

// takeover returns a Takeover, and the journal it writes.
func takeover(t *testing.T, client *kernel.Client) (*Takeover, *[]string) {
	t.Helper()
	var journal []string
	return &Takeover{
		Node:    legacy.Node{Lock: filepath.Join(t.TempDir(), "lock"), Proc: emptyProc(t)},
		Kernel:  client,
		Journal: func(e Entry) { journal = append(journal, e.String()) },
		Force:   true, // the tables have no Services
	}, &journal
}

// emptyProc is a proc file system in which no kube-proxy is to be seen.
func emptyProc(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink("/proc/net", filepath.Join(dir, "net")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTakeoverKernel goes through a takeover, and then looks for what is left.
func TestTakeoverKernel(t *testing.T) {
	client := newClient(t)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	shape := legacytest.Shape{Family: nft.IP, Services: 30, Endpoints: 2}
	lab.Run(t, shape.IPTables(), "iptables-legacy-restore")
	lab.Run(t, shape.NFTables(), "nft", "-f", "-")
	steps, journal := takeover(t, client)
	if needed, running, err := steps.Begin(t.Context()); !needed || running || err != nil {
		t.Fatalf("needed %t, running %t, %v", needed, running, err)
	}
	missing := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 16})
	missing.Apply(tracker.Delta{})
	if _, _, err := steps.First(t.Context(), missing.Want(), ""); err != nil {
		t.Fatal(err)
	}
	if verified, err := steps.Verify(t.Context(), missing.Want()); verified || err == nil ||
		!strings.HasPrefix(err.Error(), "verify: ") {
		t.Errorf("before our tables are there: verified %t, %v", verified, err)
	}
	want := commitTables(t, client)
	for i, first := range []bool{true, false} {
		if verified, err := steps.Verify(t.Context(), want); verified != first || err != nil {
			t.Errorf("commit %d: verified %t, %v", i, verified, err)
		}
	}
	err := steps.Remove(t.Context(), "")
	if err != nil || StateAfter(err) != Taken {
		t.Fatal(err)
	}
	lines := []string{
		(*journal)[0], "verify: begins", // which fails
		"verify: begins", "verify: done: our tables read back as they should be, 6 elements looked up",
		"wait for packets in flight: begins", "wait for packets in flight: done: no packet is between two hooks any more",
		"remove from legacy ip filter: begins", "remove from legacy ip filter: done: 9 jumps, 6 chains, 16 rules in them",
		"remove from legacy ip nat: begins", "remove from legacy ip nat: done: 3 jumps, 106 chains, 273 rules in them",
		"remove from legacy ip mangle: begins", "remove from legacy ip mangle: done: 1 chain",
		"remove from kube-proxy-nftables ip kube-proxy: begins",
		"remove from kube-proxy-nftables ip kube-proxy: done: 60 chains, 122 rules in them, 10 sets",
		"look again: begins", "look again: done: nothing of kube-proxy's is left",
	}
	if diff := cmp.Diff(lines, *journal); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	if line, begin := (*journal)[0], "compare: done: "; !strings.HasPrefix(line, begin) {
		t.Errorf("the journal begins with %q, want %q", line, begin)
	}
	steps, _ = takeover(t, client)
	if needed, running, err := steps.Begin(t.Context()); needed || running || err != nil {
		t.Errorf("on a clean node: needed %t, running %t, %v", needed, running, err)
	}
}

// TestTakeoverUnverifiedKernel has CAP_NET_ADMIN, but is not root: ip_tables cannot be read, nf_tables can.
func TestTakeoverUnverifiedKernel(t *testing.T) {
	client := newClient(t)
	shape := legacytest.Shape{Family: nft.IP, Services: 30, Endpoints: 2}
	lab.Run(t, shape.IPTables(), "iptables-legacy-restore", "-w")
	lab.Run(t, shape.NFTables(), "nft", "-f", "-")
	commitTables(t, client)
	becomeNobody(t)
	steps, _ := takeover(t, client)
	err := steps.Remove(t.Context(), "")
	want := "look again: look for kube-proxy's state: legacy ip could not be read: needs CAP_NET_ADMIN, as root, in the " +
		"node's network namespace"
	if StateAfter(err) != Unverified || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if tables := lab.Run(t, "", "nft", "list", "tables"); strings.Contains(tables, "kube-proxy") {
		t.Errorf("what can be seen has not been removed:\n%s", tables)
	}
}

// TestTakeoverBesideDaemonKernel: beside a daemon, nothing of kube-proxy's goes before the daemon has
// committed our tables.
func TestTakeoverBesideDaemonKernel(t *testing.T) {
	client := newClient(t)
	lab.Run(t, legacytest.Shape{Family: nft.IP, Services: 3, Endpoints: 2}.NFTables(), "nft", "-f", "-")
	steps, _ := takeover(t, client)
	steps.Beside = true
	err := steps.Remove(t.Context(), "")
	if want := "the daemon has not committed our tables yet; see its log, and run this again"; err == nil ||
		err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	commitTables(t, client)
	if err := steps.Remove(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if tables := lab.Run(t, "", "nft", "list", "tables"); strings.Contains(tables, "kube-proxy") {
		t.Errorf("left behind:\n%s", tables)
	}
}

// becomeNobody makes this thread, which ends with the test, open files as the user nobody.
func becomeNobody(t *testing.T) {
	t.Helper()
	const nobody = 65534
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	if err := errors.Join(unix.Setfsgid(nobody), unix.Setfsuid(nobody)); err != nil {
		t.Fatal(err)
	}
}

func TestRollbackKernel(t *testing.T) {
	client := newClient(t)
	commitTables(t, client)
	lab.Run(t, "", "nft", "add table ip kube-nft-probe { flags dormant; }")
	var journal []string
	r := Rollback{Kernel: client, Wait: true, Journal: func(e Entry) { journal = append(journal, e.String()) }}
	for range 2 {
		if err := r.remove(t.Context()); err != nil { // nothing is served, so there is nothing to wait for
			t.Fatal(err)
		}
	}
	want := []string{
		"wait for kube-proxy's rules: begins", "wait for kube-proxy's rules: done: they are in place under ours",
		"stop serving new connections: begins",
		"stop serving new connections: done: our base chains are gone from table ip kube-nft, table ip6 kube-nft",
		"wait for packets in flight: begins", "wait for packets in flight: done: no packet is between two hooks any more",
		"remove our tables: begins",
		"remove our tables: done: table ip kube-nft, table ip6 kube-nft, table ip kube-nft-probe; connections that are " +
			"under way keep their translation",
		"look again: begins", "look again: done: no trace of kube-nft is left in nf_tables",
		"wait for kube-proxy's rules: begins", "wait for kube-proxy's rules: done: they are in place under ours",
		"stop serving new connections: begins", "stop serving new connections: done: there are no rules of ours",
		"wait for packets in flight: begins", "wait for packets in flight: done: no packet is between two hooks any more",
		"remove our tables: begins", "remove our tables: done: there are none",
		"look again: begins", "look again: done: no trace of kube-nft is left in nf_tables",
	}
	if diff := cmp.Diff(want, journal); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}

func TestUnserved(t *testing.T) {
	serving := func(n int) *nft.Table {
		table := nft.NewTable(nft.IP)
		table.Sets[layout.ServicesMap] = &nft.Elements{Map: map[string]nft.Element{}}
		for i := range n {
			table.Sets[layout.ServicesMap].Map[string(rune(i))] = nft.Element{}
		}
		return table
	}
	iptables := legacy.Part{
		Backend: legacy.Compat, Family: "ip", Table: "nat",
		Chains: []string{"KUBE-SERVICES", "KUBE-SVC-AAAAAAAAAAAAAAAA"},
		Jumps:  []legacy.Jump{{Chain: "PREROUTING", Rule: 1, Target: "KUBE-SERVICES"}},
	}
	empty := iptables
	empty.Chains = []string{"KUBE-SERVICES"}
	for _, tt := range []struct {
		name string
		ours nft.Tables
		part legacy.Part
		want []string
	}{
		{"no tables", nil, legacy.Part{}, nil},
		{"no Services", nft.Tables{nft.IP: serving(0)}, legacy.Part{}, nil},
		{"nothing there", nft.Tables{nft.IP: serving(1), nft.IP6: serving(1)}, legacy.Part{},
			[]string{"family ip", "family ip6"}},
		{"the other family", nft.Tables{nft.IP: serving(1), nft.IP6: serving(1)}, iptables, []string{"family ip6"}},
		{"begun", nft.Tables{nft.IP: serving(1)}, empty, []string{"family ip"}},
		{"iptables", nft.Tables{nft.IP: serving(1)}, iptables, nil},
		{"nftables", nft.Tables{nft.IP: serving(1)}, legacy.Part{Backend: legacy.ProxyTables, Family: "ip",
			Sets: []legacy.Set{{Name: "service-ips", Elements: 1}}}, nil},
		{"nftables, begun", nft.Tables{nft.IP: serving(1)}, legacy.Part{Backend: legacy.ProxyTables, Family: "ip",
			Sets: []legacy.Set{{Name: "service-ips"}}}, []string{"family ip"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := unserved(tt.ours, &legacy.Inventory{Parts: []legacy.Part{tt.part}})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWaitForEnd(t *testing.T) { synctest.Test(t, waitForEnd) }

func waitForEnd(t *testing.T) {
	lists := [][]legacy.Process{{{PID: 1, Command: "a"}}, {{PID: 1, Command: "a"}}, nil}
	calls, reports := 0, 0
	list := processList(func(string) ([]legacy.Process, error) { calls++; return lists[min(calls, len(lists))-1], nil })
	if err := list.waitForEnd(t.Context(), legacy.Node{}, func(string) { reports++ }); err != nil || reports != 1 {
		t.Errorf("%d reports, %v", reports, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	forever := processList(func(string) ([]legacy.Process, error) { return lists[0], nil })
	err := forever.waitForEnd(ctx, legacy.Node{}, func(string) {})
	if want := "process 1 (a) is still running: context deadline exceeded"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	broken := processList(func(string) ([]legacy.Process, error) { return nil, os.ErrNotExist })
	if err := broken.waitForEnd(t.Context(), legacy.Node{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// TestSteady: a process that is hidden has to stay for a while; one that is seen is believed at
// once.
func TestSteady(t *testing.T) {
	hidden, seen := legacy.Process{Command: "hidden from here"}, legacy.Process{PID: 7, Command: "kube-proxy"}
	for name, tt := range map[string]struct {
		process legacy.Process
		lives   time.Duration
		found   int
		takes   time.Duration
	}{
		"dies":         {hidden, 120 * time.Millisecond, 0, 150 * time.Millisecond},
		"stays":        {hidden, time.Hour, 1, time.Second},
		"is seen":      {seen, time.Hour, 1, 0},
		"is not there": {hidden, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				list := processList(func(string) (list []legacy.Process, _ error) {
					if time.Since(began) < tt.lives {
						list = append(list, tt.process)
					}
					return list, nil
				})
				found, err := list.steady(t.Context(), legacy.Node{})
				if took := time.Since(began); len(found) != tt.found || err != nil || took != tt.takes {
					t.Errorf("found %v, %v after %s", found, err, took)
				}
			})
		})
	}
}

func TestNoRules(t *testing.T) {
	inventory := legacy.Inventory{Parts: []legacy.Part{{}, {Needs: "CAP_NET_RAW"}}}
	if got := noRules(&inventory); got != "kube-nft finds no rules of kube-proxy (to find all, it needs CAP_NET_RAW)" {
		t.Errorf("got %q", got)
	}
	if got := noRules(new(legacy.Inventory)); got != "no rules of kube-proxy's are in place" {
		t.Errorf("of nothing %q", got)
	}
}
