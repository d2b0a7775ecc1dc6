package golden

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/manifest"
)

// A scenario is an archive with the flags of kube-nft and, for each step, a directory with
// objects.yaml, what is applied, and delete, what is deleted: lines with a kind, a
// namespace, which cluster-wide objects do not have, and a name. After the step,
// ruleset.nft is what the ruleset then has beyond an empty cluster's under default flags, and
// batch.nft are the operations of the step.
type scenario struct {
	path string
	archive
}

// loadScenarios reads all scenarios, in the order of their names.
func loadScenarios(t testing.TB) []scenario {
	t.Helper()
	paths, err := filepath.Glob("testdata/scenarios/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	scenarios := make([]scenario, 0, len(paths))
	for _, path := range paths {
		scenarios = append(scenarios, scenario{path: path, archive: readArchive(t, path)})
	}
	return scenarios
}

// name returns the name of the scenario's file.
func (s *scenario) name() string { return strings.TrimSuffix(filepath.Base(s.path), ".txtar") }

// steps lists the directories of the steps, in order.
func (s *scenario) steps() []string {
	var steps []string
	for _, f := range s.files {
		if dir, base := path.Split(f.name); base == "objects.yaml" || base == "delete" {
			steps = append(steps, strings.TrimSuffix(dir, "/"))
		}
	}
	return slices.Compact(steps)
}

// flags returns the scenario's flags, one a line.
func (s *scenario) flags() []string { return strings.Fields(s.text("flags")) }

// A play is a scenario under way: what kube-nft does with it, but for the sockets.
type play struct {
	tracker   *tracker.Tracker
	ruleset   *services.Ruleset
	nodePorts proxysync.NodePortAddresses
	dir       string // for the steps' objects
}

// start begins to play the scenario.
func (s *scenario) start(t testing.TB) *play {
	t.Helper()
	p := newPlay(t, scenarioSettings(t, s.flags()))
	p.ruleset.Committed()
	return p
}

// newPlay returns a play without objects, whose skeleton is still to be committed.
func newPlay(t testing.TB, settings scenarioFlags) *play {
	t.Helper()
	config, nodePorts := settings.config(t)
	return &play{
		tracker: tracker.New(tracker.Config{NodeName: lab.NodeName, ServiceCIDRs: settings.serviceCIDRs(t),
			Clock: func() time.Time { return time.Unix(0, 0) }}),
		ruleset:   services.NewRuleset(config),
		nodePorts: nodePorts,
		dir:       t.TempDir(),
	}
}

// do plays a step up to, but not including, its commit, and returns its batch.
func (p *play) do(t testing.TB, s *scenario, step string) nft.Batch {
	t.Helper()
	p.applyText(t, s.text(step+"/objects.yaml"))
	for line := range strings.Lines(s.text(step + "/delete")) {
		p.remove(t, strings.Fields(line))
	}
	return p.batch()
}

// applyText applies objects in YAML.
func (p *play) applyText(t testing.TB, text string) {
	t.Helper()
	if text == "" {
		return
	}
	file := filepath.Join(p.dir, "objects.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	options := manifest.Options{Refused: func(err error) { t.Errorf("refused: %v", err) }}
	if err := manifest.Load(file, options, p.tracker); err != nil {
		t.Fatal(err)
	}
}

// remove deletes an object.
func (p *play) remove(t testing.TB, words []string) {
	t.Helper()
	switch {
	case len(words) == 3 && words[0] == "Service":
		p.tracker.DeleteService(words[1], words[2])
	case len(words) == 3 && words[0] == "EndpointSlice":
		p.tracker.DeleteSlice(words[1], words[2])
	case len(words) == 2 && words[0] == "ServiceCIDR":
		p.tracker.DeleteServiceCIDR(words[1])
	default:
		t.Fatalf("cannot delete %q", words)
	}
}

// batch brings what the tracker has into the ruleset and returns the operations that
// bring it into the kernel.
func (p *play) batch() nft.Batch {
	p.ruleset.Apply(p.tracker.Take())
	addrs := p.tracker.NodeAddresses()
	p.ruleset.SetNodePortAddresses(p.nodePorts.Select(addrs, addrs))
	return p.ruleset.Changes()
}

// scenarioFlags are kube-nft's flags on which the ruleset depends. TestGoldenDryRun shows that
// they mean the same here.
type scenarioFlags struct {
	clusterCIDR, detect, bridge, prefix, services, nodePorts string
	masqueradeAll                                            bool
	masqueradeBit                                            uint
}

// scenarioSettings reads flags.
func scenarioSettings(t testing.TB, args []string) scenarioFlags {
	t.Helper()
	var s scenarioFlags
	set := flag.NewFlagSet("scenario", flag.ContinueOnError)
	set.StringVar(&s.clusterCIDR, "cluster-cidr", "", "")
	set.StringVar(&s.detect, "detect-local-mode", "ClusterCIDR", "")
	set.StringVar(&s.bridge, "pod-bridge-interface", "", "")
	set.StringVar(&s.prefix, "pod-interface-name-prefix", "", "")
	set.StringVar(&s.services, "service-cidr", "", "")
	set.StringVar(&s.nodePorts, "nodeport-addresses", "", "")
	set.BoolVar(&s.masqueradeAll, "masquerade-all", false, "")
	set.UintVar(&s.masqueradeBit, "masquerade-bit", 14, "")
	if err := set.Parse(args); err != nil || set.NArg() > 0 {
		t.Fatalf("flags %q: %v", args, err)
	}
	return s
}

// config returns what the flags mean for the ruleset.
func (s scenarioFlags) config(t testing.TB) (services.Config, proxysync.NodePortAddresses) {
	t.Helper()
	nodePorts, err := proxysync.ParseNodePortAddresses(commaList(s.nodePorts))
	if err != nil {
		t.Fatal(err)
	}
	config := services.Config{
		Families:      nft.Families[:],
		MasqueradeAll: s.masqueradeAll,
		MasqueradeBit: uint8(s.masqueradeBit),
		Pods:          make(map[nft.Family]layout.PodMatch),
		AllNodePorts:  make(map[nft.Family]bool),
		AffinitySize:  131072,
	}
	for _, family := range tracker.Families {
		config.AllNodePorts[family] = nodePorts.All(family)
		if s.bridge+s.prefix != "" {
			config.Pods[family] = layout.PodMatch{Interface: s.bridge + s.prefix, Prefix: s.prefix != ""}
		}
	}
	for _, prefix := range parsePrefixes(t, s.clusterCIDR) {
		config.Pods[tracker.FamilyOf(prefix.Addr())] = layout.PodMatch{CIDR: prefix}
	}
	return config, nodePorts
}

func (s scenarioFlags) serviceCIDRs(t testing.TB) []netip.Prefix { return parsePrefixes(t, s.services) }

// parsePrefixes reads a comma list of CIDRs.
func parsePrefixes(t testing.TB, list string) []netip.Prefix {
	t.Helper()
	var prefixes []netip.Prefix
	for _, text := range commaList(list) {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes
}

// commaList splits a list; the empty text is the empty list.
func commaList(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// A block is a chain, set or map of a ruleset's text, its table's name included.
type block struct{ table, head, text string }

// blocks takes the text of a ruleset apart.
func blocks(text string) []block {
	var list []block
	table := ""
	for line := range strings.Lines(text) {
		indent := len(line) - len(strings.TrimLeft(line, "\t"))
		switch {
		case strings.HasPrefix(line, "table "):
			table = line
		case indent == 1 && strings.HasSuffix(line, "{\n"):
			list = append(list, block{table: table, head: line, text: line})
		case indent > 1 || indent == 1 && line == "\t}\n":
			list[len(list)-1].text += line
		}
	}
	return list
}

// changedBlocks returns the part of a ruleset's text that the base does not have, and
// names what only the base has.
func changedBlocks(base, text string) string {
	have, want := blocks(base), blocks(text)
	var b strings.Builder
	table := ""
	enter := func(next string) {
		if next != table {
			b.WriteString(next)
			table = next
		}
	}
	for _, w := range want {
		if !slices.Contains(have, w) {
			enter(w.table)
			b.WriteString(w.text)
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w block) bool { return w.table == h.table && w.head == h.head }) {
			enter(h.table)
			fmt.Fprintf(&b, "\t# without %s\n", strings.TrimSuffix(strings.TrimSpace(h.head), " {"))
		}
	}
	return b.String()
}
