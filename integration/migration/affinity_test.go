package migration

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

// affineClients is how many clients of each family there are.
const affineClients = 20

// affineService is a Service of every shape that has session affinity and a cluster IP alone.
const affineService = 4

// affineClient is the address of a client on the clients' link.
func affineClient(f nft.Family, n int) netip.Addr {
	if f == nft.IP6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:7::c:%d", n+1))
	}
	return netip.AddrFrom4([4]byte{192, 168, 7, byte(100 + n)})
}

// newAffinity makes a node on which kube-proxy has been until now, without load: pods answer with their
// own address.
func newAffinity(t *testing.T, binary string, state oldState) *migration {
	t.Helper()
	m := &migration{net: newMigrationNet(t), state: state, shapes: shapesOf(10), binary: binary,
		source: lab.NewDirectory(t)}
	if err := os.Chmod(filepath.Dir(string(m.source)), 0o755); err != nil {
		t.Fatal(err)
	}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	m.program(t)
	err := m.net.pods.Do(func() error {
		for network, address := range map[string]string{"tcp4": "0.0.0.0:8080", "tcp6": "[::]:8080"} {
			listener, err := net.Listen(network, address)
			if err != nil {
				return err
			}
			t.Cleanup(func() { listener.Close() })
			lab.Serve(listener, func(conn net.Conn) { fmt.Fprintln(conn, conn.LocalAddr()) })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = m.net.client.Do(func() error {
		for _, f := range nft.Families {
			for n := range affineClients {
				addr := affineClient(f, n)
				if err := lab.AddAddress("node", netip.PrefixFrom(addr, addr.BitLen())); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// reached connects from every client to the Service with affinity and returns the endpoints that answered.
func (m *migration) reached(t *testing.T) map[string]string {
	t.Helper()
	endpoints := make(map[string]string)
	err := m.net.client.Do(func() error {
		for _, s := range m.shapes {
			for n := range affineClients {
				from := affineClient(s.Family, n)
				dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: lab.Patience}
				to := netip.AddrPortFrom(s.ClusterIP(affineService), 80).String()
				conn, err := dialer.DialContext(context.Background(), "tcp", to)
				if err != nil {
					return err
				}
				line, err := bufio.NewReader(conn).ReadString('\n')
				conn.Close()
				if err != nil {
					return err
				}
				endpoints[from.String()] = strings.TrimSpace(line)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return endpoints
}

// affinityExpiry is how nft lists the timeout of an entry, and what is left of it.
var affinityExpiry = regexp.MustCompile(`timeout 3h expires (\w+)`)

// checkEntries expects an entry for each client, made after a time with the full timeout.
func checkEntries(t *testing.T, clients int, since time.Time) {
	t.Helper()
	expiries := affinityExpiry.FindAllStringSubmatch(lab.Run(t, "", "nft", "list", "ruleset"), -1)
	if len(expiries) != clients {
		t.Errorf("%d entries of session affinity, want %d", len(expiries), clients)
	}
	for _, expiry := range expiries {
		left, err := time.ParseDuration(expiry[1])
		if used := 3*time.Hour - left; err != nil || used > time.Since(since)+time.Second {
			t.Errorf("%v after the takeover began, an entry has %v left (%v)", time.Since(since), left, err)
		}
	}
}

// TestMigrateAffinityKernel: each client reaches the endpoint after the takeover that it has reached
// before, from each of kube-proxy's modes but IPVS, in both families.
func TestMigrateAffinityKernel(t *testing.T) {
	t.Parallel()
	binary := lab.Program(t)
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			m := newAffinity(t, binary, state)
			began := time.Now()
			before := m.reached(t)
			if distinct := len(distinctValues(before)); distinct < 4 {
				t.Fatalf("%d endpoints of 6 are in use; clients would stay by chance", distinct)
			}
			if diff := cmp.Diff(before, m.reached(t)); diff != "" {
				t.Fatalf("kube-proxy's own rules do not keep clients (-before +after):\n%s", diff)
			}
			since := time.Now()
			want := fmt.Sprintf("session affinity: kube-proxy knows the endpoints of %d clients — %d of them keep theirs",
				2*affineClients, 2*affineClients)
			if plan := strings.Join(strings.Fields(m.plan(t)), " "); !strings.Contains(plan, want) {
				t.Errorf("the plan does not say %q:\n%s", want, plan)
			}
			if said, want := m.apply(t), fmt.Sprintf("session affinity: %d clients keep their endpoint",
				2*affineClients); !strings.Contains(said, want) {
				t.Errorf("apply does not say %q:\n%s", want, said)
			}
			if left := proxys(m.state.save(t)); left != "" {
				t.Errorf("left of kube-proxy's:\n%s", left)
			}
			checkEntries(t, 2*affineClients, since)
			if diff := cmp.Diff(before, m.reached(t)); diff != "" {
				t.Errorf("endpoints that the clients reach (-kube-proxy +kube-nft, %v later):\n%s", time.Since(began), diff)
			}
		})
	}
}

func distinctValues(m map[string]string) map[string]bool {
	distinct := make(map[string]bool)
	for v := range maps.Values(m) {
		distinct[v] = true
	}
	return distinct
}

// TestMigrateAffinityOfLeftKernel: the client of an endpoint that has left meanwhile chooses among
// those that are there, and all others keep theirs.
func TestMigrateAffinityOfLeftKernel(t *testing.T) {
	t.Parallel()
	m := newAffinity(t, lab.Program(t), oldStates[0])
	before := m.reached(t)
	gone := make(map[string]bool)
	objects := migrationManifest(m.shapes)
	for _, s := range m.shapes {
		gone[netip.AddrPortFrom(s.Endpoint(affineService, 0), 8080).String()] = true
		objects = strings.ReplaceAll(objects, fmt.Sprintf(`{"addresses":["%s"],"conditions":{}`,
			s.Endpoint(affineService, 0)),
			fmt.Sprintf(`{"addresses":["%s"],"conditions":{"ready":false,"serving":false}`, s.Endpoint(affineService, 0)))
	}
	m.source.Write(t, "objects.yaml", objects)
	m.apply(t)
	moved := 0
	for client, endpoint := range m.reached(t) {
		switch {
		case gone[endpoint]:
			t.Errorf("%s reaches %s, which has left", client, endpoint)
		case gone[before[client]]:
			moved++
		case endpoint != before[client]:
			t.Errorf("%s reaches %s, not %s as before", client, endpoint, before[client])
		}
	}
	if moved == 0 {
		t.Error("no client was at the endpoint that has left")
	}
}
