package migration

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
)

// A wrongSource would take Services away with kube-proxy's rules.
type wrongSource struct {
	name   string
	flags  []string
	remove func(t *testing.T, m *migration) // what the source lacks
	says   string
}

var wrongSources = []wrongSource{
	{
		name: "a host name that no Node has", flags: []string{"--hostname-override", "node-x"},
		remove: func(*testing.T, *migration) {},
		says:   "no Node is called node-x",
	},
	{
		name:   "an empty source",
		remove: func(t *testing.T, m *migration) { m.source.Write(t, "objects.yaml", "") },
		says:   "no Node is called node-1",
	},
	{
		name:   "a source with a Node alone",
		remove: func(t *testing.T, m *migration) { m.source.Write(t, "objects.yaml", migrationManifest(nil)) },
		says:   "the source has no Service with an endpoint",
	},
	{
		name: "a source with half of the Services",
		remove: func(t *testing.T, m *migration) {
			m.source.Write(t, "objects.yaml", migrationManifest(shapesOf(30)))
		},
		says: "would not be served; no Service has them: ",
	},
	{
		name: "node ports at no address of the node", flags: []string{"--nodeport-addresses", "203.0.113.0/24,2001:db8::/64"},
		remove: func(*testing.T, *migration) {},
		says:   "node ports would be served at no address of this node: node port 30000/tcp of shop/service-1:http",
	},
}

// TestMigrateLossRefusedKernel: migrate apply and plan refuse what would take Services away, and touch
// nothing. A daemon keeps running, commits nothing, says so, and takes over as soon as the source has
// what it lacked. --force takes over nevertheless.
func TestMigrateLossRefusedKernel(t *testing.T) {
	t.Parallel()
	binary := lab.Program(t)
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			m := newMigration(t, binary, state, shapesOf(60))
			before := state.save(t)
			wrongs := wrongSources
			if state.name != oldStates[0].name { // what is compared does not depend on the state
				wrongs = wrongs[:2]
			}
			for _, wrong := range wrongs {
				wrong.remove(t, m)
				for _, args := range [][]string{m.applyArgs(), append([]string{"plan"}, m.applyArgs()[1:]...)} {
					p := lab.Start(t, slices.Concat([]string{binary, "migrate"}, args, wrong.flags)...)
					<-p.Exited()
					if p.ExitCode() != 1 || args[0] == "apply" && !strings.Contains(p.Stderr(), wrong.says) {
						t.Errorf("%s: %s: exit code %d, want 1 and %q:\n%s", wrong.name, args[0], p.ExitCode(), wrong.says, p.Stderr())
					}
				}
				if diff := cmp.Diff(before, state.save(t)); diff != "" {
					t.Fatalf("%s: the rules have changed (-before +after):\n%s", wrong.name, diff)
				}
				if tables := lab.Run(t, "", "nft", "list", "tables"); strings.Contains(tables, "kube-nft") {
					t.Errorf("%s: our tables are there:\n%s", wrong.name, tables)
				}
				m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
			}
			m.source.Write(t, "objects.yaml", strings.Replace(migrationManifest(m.shapes), `"name":"node-1"`, `"name":"node-2"`,
				1))
			daemon := m.startDaemon(t)
			awaitMetric(t, `kube_nft_safety_check{reason="takeover"} 1`)
			awaitMetric(t, `kube_nft_takeover{state="refused"} 1`)
			daemon.AwaitLog(t, "no Node is called node-1")
			m.load.await(t, 100)
			if diff := cmp.Diff(before, state.save(t)); diff != "" {
				t.Errorf("the rules have changed (-before +after):\n%s", diff)
			}
			if tables := lab.Run(t, "", "nft", "list", "tables"); strings.Contains(tables, "kube-nft") {
				t.Errorf("it has committed:\n%s", tables)
			}
			if status := m.status(t); !strings.Contains(status, "a source that has what kube-proxy serves") {
				t.Errorf("status: %s", status)
			}
			proxy := startFakeProxy(t) // it is started again
			m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
			daemon.AwaitLog(t, "kube-proxy runs on this node again, process")
			if tables := lab.Run(t, "", "nft", "list", "tables"); strings.Contains(tables, "kube-nft") {
				t.Errorf("it has committed next to a live kube-proxy:\n%s", tables)
			}
			proxy.Signal(syscall.SIGTERM)
			awaitMetric(t, `kube_nft_takeover{state="done"} 1`)
			awaitMetric(t, `kube_nft_safety_check{reason="takeover"} 0`)
			if left := proxys(state.save(t)); left != "" {
				t.Errorf("left of kube-proxy's:\n%s\n%s", left, daemon.Stderr())
			}
			m.load.await(t, 100)
			m.load.check(t) // before it is forced
			daemon.Stop(t)
			lab.Run(t, "", binary, "cleanup")
			m.program(t)
			journal := m.migrate(t, append(m.applyArgs(), "--hostname-override", "node-x", "--force")...)
			if left := proxys(state.save(t)); left != "" ||
				!strings.Contains(journal, "warning: frontends: no Node is called node-x") {
				t.Errorf("with --force, left of kube-proxy's:\n%s\n%s", left, journal)
			}
		})
	}
}

// status runs kube-nft status, which finds a daemon that has not synced, and returns what it prints as
// one line.
func (m *migration) status(t *testing.T) string {
	t.Helper()
	out, err := lab.Execute(m.binary, "status")
	if err != nil || out.Code != 1 {
		t.Errorf("status: exit code %d, %v\n%s", out.Code, err, out.Stderr)
	}
	return strings.Join(strings.Fields(out.Stdout), " ")
}

// TestNoTakeoverOfManifestsKernel: a daemon that reads files leaves kube-proxy's rules alone, unless
// --takeover says otherwise.
func TestNoTakeoverOfManifestsKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{state: oldStates[0], shapes: shapesOf(30), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.program(t)
	before := m.state.save(t)
	daemon := lab.Start(t, append([]string{m.binary, "--metrics-bind-address", metricsAddress}, m.applyArgs()[1:]...)...)
	daemon.AwaitLog(t, "kube-nft started")
	if diff := cmp.Diff(before, m.state.save(t)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	daemon.Stop(t)
	m.startDaemon(t, "--takeover=force")
	awaitMetric(t, `kube_nft_takeover{state="done"} 1`)
	if left := proxys(m.state.save(t)); left != "" {
		t.Errorf("with --takeover=force, left of kube-proxy's:\n%s", left)
	}
}

// TestRestartWithEmptySourceKernel: a daemon that is started again with a source that has nothing goes
// on serving what its tables have.
func TestRestartWithEmptySourceKernel(t *testing.T) {
	t.Parallel()
	m := newMigration(t, lab.Program(t), oldStates[2], shapesOf(60))
	m.apply(t)
	m.source.Write(t, "objects.yaml", migrationManifest(nil))
	daemon := m.startDaemon(t)
	awaitMetric(t, `kube_nft_safety_check{reason="source"} 1`)
	daemon.AwaitLog(t, "frontends, and the source has 0 of them")
	m.load.await(t, 100)
	if status := m.status(t); !strings.Contains(status, "a source that has what our tables serve") {
		t.Errorf("status: %s", status)
	}
	p := lab.Start(t, append([]string{m.binary, "migrate"}, m.applyArgs()...)...) // leaves the tables to the daemon
	<-p.Exited()
	m.load.await(t, 50)
	daemon.Signal(syscall.SIGTERM)
	<-daemon.Exited()
	p = lab.Start(t, append([]string{m.binary, "migrate"}, m.applyArgs()...)...)
	<-p.Exited()
	// an init container must not fail for good
	if p.ExitCode() != 0 || !strings.Contains(p.Stderr(), "commit: done: our tables stay as they are: ") {
		t.Errorf("apply: exit code %d\n%s", p.ExitCode(), p.Stderr())
	}
	m.program(t)
	p = lab.Start(t, append([]string{m.binary, "migrate"}, m.applyArgs()...)...)
	<-p.Exited()
	if p.ExitCode() != 1 || !strings.Contains(p.Stderr(), "cannot take over this node, see the lines that begin "+
		"with blocks") ||
		proxys(m.state.save(t)) == "" {
		t.Errorf("apply over kube-proxy's rules: exit code %d\n%s", p.ExitCode(), p.Stderr())
	}
	m.load.await(t, 50)
	m.startDaemon(t)
	awaitMetric(t, `kube_nft_safety_check{reason="source"} 1`)
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	awaitMetric(t, `kube_nft_safety_check{reason="source"} 0`)
	m.load.await(t, 50)
	m.load.check(t) // until everything is deleted for real
	m.source.Write(t, "objects.yaml", migrationManifest(nil))
	lab.Eventually(t, "the daemon follows a source that is emptied while it runs", func() bool {
		return !strings.Contains(lab.Run(t, "", "nft", "list", "map", "ip", "kube-nft", "services"),
			legacytest.Shape{}.ClusterIP(0).String())
	})
}

// TestRollbackLossRefusedKernel: our tables stay as long as kube-proxy's rules lack much of what they
// serve.
func TestRollbackLossRefusedKernel(t *testing.T) {
	t.Parallel()
	binary := lab.Program(t)
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			m := newMigration(t, binary, state, shapesOf(60))
			m.apply(t)
			for _, s := range shapesOf(30) { // a kube-proxy that has just begun
				m.state.load(t, s)
			}
			for _, args := range [][]string{{"rollback"}, {"rollback", "--wait", "--timeout", "5s"}} {
				p := lab.Start(t, append([]string{binary, "migrate"}, args...)...)
				<-p.Exited()
				want := "kube-proxy's rules do not serve 76 of 152 frontends that our tables serve: node port 30006/tcp of " +
					"shop/service-ip-31:http, "
				if p.ExitCode() != 1 || strings.Count(p.Stderr(), want) != 1 ||
					!strings.Contains(p.Stderr(), "nothing was removed") {
					t.Errorf("%v: exit code %d, want 1 and once %q:\n%s", args, p.ExitCode(), want, p.Stderr())
				}
			}
			m.load.await(t, 50)
			m.program(t)
			m.migrate(t, "rollback")
			m.load.await(t, 50)
			m.load.check(t)
		})
	}
}

// TestMigrateIPVSRefusedKernel: chains and ipsets of the IPVS mode stay where the source is wrong. This
// kernel may lack IPVS itself, so nothing is known to be served.
func TestMigrateIPVSRefusedKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{shapes: shapesOf(30), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	for _, s := range m.shapes {
		lab.Run(t, s.IPSets(), "ipset", "restore")
		lab.Run(t, s.IPVS(), iptablesProgram(s.Family, "nft", "restore"), "-w")
	}
	save := func() string { return saveIPTables("nft")(t) + lab.Run(t, "", "ipset", "save") }
	before := save()
	wrong := append([]string{m.binary, "migrate"}, append(m.applyArgs(), "--hostname-override", "node-x")...)
	out, err := lab.Execute(wrong...)
	if err != nil || out.Code != 1 || !strings.Contains(out.Stderr, "no Node is called node-x") {
		t.Errorf("exit code %d, %v\n%s", out.Code, err, out.Stderr)
	}
	if diff := cmp.Diff(before, save()); diff != "" {
		t.Errorf("the rules have changed (-before +after):\n%s", diff)
	}
	m.apply(t)
	if left := proxys(save()); left != "" || strings.Contains(save(), "create KUBE-") {
		t.Errorf("left of kube-proxy's:\n%s", left)
	}
}
