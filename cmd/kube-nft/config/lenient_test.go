package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	proxyHead = "apiVersion: " + proxyVersion + "\nkind: " + proxyKind + "\n"
	ownHead   = "apiVersion: " + APIVersion + "\nkind: " + ownKind + "\n"
)

// checkNotices holds the notices of a file, in which FILE stands for its path, to want.
func checkNotices(t *testing.T, c *Config, want ...string) {
	t.Helper()
	got := make([]string, 0, len(c.Notices))
	for _, notice := range c.Notices {
		got = append(got, strings.ReplaceAll(notice, c.File, "FILE"))
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
}

// TestUnknownFields: what kube-proxy would warn of and leave out is left out here, and named.
func TestUnknownFields(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown", proxyHead + "sysctls: {}\n", "FILE: sysctls: ignored, there is no such field"},
		{"misplaced", proxyHead + "qps: 5\n", "FILE: qps: ignored, there is no such field; is clientConnection.qps meant?"},
		{"wrong case", proxyHead + "nftables: {MasqueradeAll: true}\n",
			"FILE: nftables.MasqueradeAll: ignored, there is no such field; is nftables.masqueradeAll meant?"},
		{"wrong case of a section", proxyHead + "Nftables: {masqueradeAll: true}\n",
			"FILE: Nftables: ignored, there is no such field; is nftables meant?"},
		{"in our own", proxyHead + "---\n" + ownHead + "clusterCIDR: 10.0.0.0/8\n",
			"FILE: clusterCIDR: ignored, there is no such field"},
		{"hostile name", proxyHead + "\"a\\nb\\e[2J\": 1\n", `FILE: a\nb\x1b[2J: ignored, there is no such field`},
		{"twice", proxyHead + "oomScoreAdj: 1\noomScoreAdj: -999\n",
			`FILE: line 4: field "oomScoreAdj" is given twice; kube-nft uses the last value`},
		{"twice in a section", "---\n# comment\n" + proxyHead + "nftables:\n  masqueradeBit: 3\n  masqueradeBit: 14\n",
			`FILE: line 7: field "masqueradeBit" is given twice; kube-nft uses the last value`},
		{"twice in the second document", proxyHead + "---\n" + ownHead + "affinitySize: 1\naffinitySize: 131072\n",
			`FILE: line 7: field "affinitySize" is given twice; kube-nft uses the last value`},
		{"twice in JSON", `{"apiVersion":"` + proxyVersion + `","kind":"` + proxyKind + `","oomScoreAdj":1,` + "\n" +
			`"oomScoreAdj":-999}`, `FILE: line 2: field "oomScoreAdj" is given twice; kube-nft uses the last value`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mustRead(t, "--config", writeFile(t, tt.text))
			checkNotices(t, c, tt.want)
			if diff := cmp.Diff(yamlOf(t, mustRead(t)), yamlOf(t, c)); diff != "" {
				t.Errorf("settings that are not the defaults:\n%s", diff)
			}
		})
	}
}

// TestUnknownFieldDoesNotHideInvalidValue: a field that does not exist does not hide a wrong value.
func TestUnknownFieldDoesNotHideInvalidValue(t *testing.T) {
	file := writeFile(t, proxyHead+"sysctls: {}\noomScoreAdj: 1\noomScoreAdj: low\n")
	_, err := newReader(t, "--config", file).Read()
	checkError(t, err, file, "FILE: oomScoreAdj low: expected a whole number from -2147483648 to 2147483647")
}

// TestGates: a gate decides something, or its value is what happens anyway, or there is a notice.
func TestGates(t *testing.T) {
	for _, tt := range []struct {
		name, gates     string
		flags           []string
		flagz, statusz  bool
		notices         []string
		overrides       []Override
		watchList, list bool // WatchListClient is given, and its value
	}{
		{name: "none", flagz: true, statusz: true},
		{name: "as it is anyway",
			gates: "NFTablesProxyMode: true, KubeProxyIPVS: false, NFTablesNetlink: true, MultiCIDRServiceAllocator: true",
			flagz: true, statusz: true},
		{name: "false", gates: "ComponentFlagz: false, NFTablesNetlink: false, WatchListClient: false", statusz: true,
			watchList: true,
			notices: []string{
				"FILE: featureGates.NFTablesNetlink false has no effect in kube-nft: in any case nf_tables are read and written " +
					"over netlink, without nft",
			}},
		{name: "unknown", gates: "componentstatusz: false, SupportIPVSProxyMode: true", flagz: true, statusz: true,
			notices: []string{"FILE: featureGates.SupportIPVSProxyMode true has no effect in kube-nft: there is no such gate " +
				"here",
				"FILE: featureGates.componentstatusz false has no effect in kube-nft: there is no such gate here; is " +
					"ComponentStatusz meant?"}},
		{name: "all of a stage", gates: "AllBeta: false, ComponentFlagz: true", flagz: true},
		{name: "flag", gates: "ComponentStatusz: false, ComponentFlagz: false",
			flags:   []string{"--feature-gates=ComponentStatusz=true,WatchListClient=true", "--feature-gates", "X=false"},
			statusz: true, watchList: true, list: true,
			notices:   []string{"--feature-gates X false has no effect in kube-nft: there is no such gate here"},
			overrides: []Override{{"--feature-gates ComponentStatusz", "true", "featureGates.ComponentStatusz", "false"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newReader(t, append(tt.flags, "--config", proxyFile(t, "featureGates: {"+tt.gates+"}"))...)
			for range 2 { // the second time is what a change of the file does
				c, err := r.Read()
				if err != nil {
					t.Fatal(err)
				}
				if c.Gates[GateFlagz] != tt.flagz || c.Gates[GateStatusz] != tt.statusz {
					t.Errorf("flagz %v, statusz %v; want %v, %v", c.Gates[GateFlagz], c.Gates[GateStatusz], tt.flagz, tt.statusz)
				}
				if (c.watchList != nil) != tt.watchList || tt.watchList && *c.watchList != tt.list {
					t.Errorf("watchList %v", c.watchList)
				}
				if diff := cmp.Diff(tt.overrides, c.Overrides); diff != "" {
					t.Errorf("overrides (-want +got):\n%s", diff)
				}
				checkNotices(t, c, tt.notices...)
				checkRoundTrip(t, c)
			}
		})
	}
}

var update = flag.Bool("update", false, "rewrite the table of gates")

// TestGatesAreDocumented holds the table of gates in the documentation to Gates.
func TestGatesAreDocumented(t *testing.T) {
	const path = "../../../docs/drop-in.md"
	table := "| gate | in Kubernetes 1.37 | kube-nft's default | true | false |\n|---|---|---|---|---|\n"
	for _, g := range Gates {
		on, off := g.True, g.False
		if g.Anyway != "" {
			on, off = g.Anyway, "the same"
		}
		value := fmt.Sprint(g.On)
		if g.Name == gateAllAlpha || g.Name == gateAllBeta {
			value = ""
		}
		table += fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", g.Name, g.Stage, value, on, off)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), "make golden rewrites this table -->\n")
	have, after, closed := strings.Cut(rest, "<!-- end of gates -->")
	if !found || !closed {
		t.Fatal(path + " has no table of gates")
	}
	if have = strings.Trim(have, "\n"); have+"\n" == table {
		return
	}
	if !*update {
		t.Fatalf("make golden accepts this (-want +got):\n%s",
			cmp.Diff(table, have+"\n"))
	}
	text := before + "make golden rewrites this table -->\n\n" + table + "\n<!-- end of gates -->" + after
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
