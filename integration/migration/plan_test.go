package migration

import (
	"encoding/json"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// TestMigratePlanKernel plans for each kind of old state: the plan is for people and for
// programs, and changes nothing.
func TestMigratePlanKernel(t *testing.T) {
	t.Parallel()
	binary := lab.Program(t)
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			newMigrationNet(t)
			m := &migration{state: state, shapes: shapesOf(60), binary: binary, source: lab.NewDirectory(t)}
			m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
			m.program(t)
			before := state.save(t)
			text := m.plan(t)
			for line := range strings.Lines(text) {
				if utf8.RuneCountInString(line) > 101 {
					t.Errorf("a line of more than 100 columns: %s", line)
				}
			}
			var plan migrate.Plan
			if err := json.Unmarshal([]byte(m.plan(t, "-o", "json")), &plan); err != nil {
				t.Fatal(err)
			}
			if found := backendsOf(&plan); !plan.Ready || !strings.Contains(found, state.name) {
				t.Errorf("ready %v, found %s:\n%s", plan.Ready, found, text)
			}
			if after := state.save(t); after != before {
				t.Error("the plan has changed something")
			}
		})
	}
}

// TestMigratePlanOfAnotherNodeKernel: the name of another Node is noticed by its addresses, even where
// there are no node ports.
func TestMigratePlanOfAnotherNodeKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", lab.Manifest(lab.Node("node-1", migrationNode(nft.IP)),
		lab.Node("node-2", netip.MustParseAddr("192.0.2.2"))))
	const warning = "warning Node node-2: none of its addresses, 192.0.2.2, is on an interface of this node"
	for name, want := range map[string]bool{"node-1": false, "node-2": true} {
		if text := m.plan(t, "--hostname-override", name); strings.Contains(text, warning) != want {
			t.Errorf("%s: warned %v, want %v:\n%s", name, !want, want, text)
		}
	}
}

// backendsOf lists the backends in which there is something to remove.
func backendsOf(plan *migrate.Plan) string {
	var found []string
	for i := range plan.Inventory.Parts {
		if p := &plan.Inventory.Parts[i]; !p.Clean() {
			found = append(found, string(p.Backend))
		}
	}
	return strings.Join(found, " ")
}

// plan runs migrate plan and returns what it prints.
func (m *migration) plan(t *testing.T, flags ...string) string {
	t.Helper()
	argv := append([]string{m.binary, "migrate", "plan"}, m.applyArgs()[1:]...)
	return lab.Run(t, "", append(argv, flags...)...)
}

// TestMigratePlanUnprivilegedKernel plans without any capability: what it cannot look at it
// says, and the rest it shows.
func TestMigratePlanUnprivilegedKernel(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setpriv"); err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	newMigrationNet(t)
	m := &migration{state: oldStates[0], shapes: shapesOf(30), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	m.program(t)
	argv := []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all", m.binary, "migrate", "plan"}
	out, err := lab.Execute(append(argv, m.applyArgs()[1:]...)...)
	if err != nil || out.Code != 2 {
		t.Errorf("exit code %d, want 2: it could not look (%v)\n%s", out.Code, err, out.Stderr)
	}
	text := out.Stdout
	for _, want := range []string{
		"    unknown kernel features: ",
		"    ok      sysctl net.ipv4.ip_forward: 1",
		"    ok      node ports: will be served at " + migrationNode(nft.IP).String(),
		"  legacy ip\n    unknown could not be read: needs CAP_NET_ADMIN, as root",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
