package services

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestExplainRandomWorlds explains a packet of each kind of client to every frontend: the
// explanation names the Service that owns the frontend, has a reason if the packet is not translated, and says
// whether the packet is masqueraded.
func TestExplainRandomWorlds(t *testing.T) {
	for seed := range uint64(10) {
		w, r := newWorld(t, seed), NewRuleset(testConfig())
		r.SetNodePortAddresses(nodeAddresses)
		for range 6 {
			r.Apply(w.change())
		}
		for f, claims := range w.claims() {
			owner := slices.MinFunc(claims, first).port
			for _, client := range clients(owner.ID.Family) {
				table, p := r.Want()[owner.ID.Family], client.packet(f, owner.ID.Family)
				checkExplanation(t, table.Trace(p), readback.New(table).Explain(p), owner.ID)
			}
		}
	}
}

func checkExplanation(t *testing.T, result nft.TraceResult, e readback.Explanation, owner tracker.PortID) {
	t.Helper()
	if e.TraceResult.Outcome != result.Outcome || !slices.Equal(e.Endpoints, result.Endpoints) ||
		e.TraceResult.Masquerade != result.Masquerade {
		t.Errorf("explained %+v, traced %+v", e.TraceResult, result)
	}
	if e.Service == nil || e.Service.Name.String() != layout.Comment(owner) {
		t.Errorf("explained as %+v, want %s", e.Service, owner)
	}
	if (e.Reason == "") != (result.Outcome == "dnat") {
		t.Errorf("%s because of %q", result.Outcome, e.Reason)
	}
	masquerade := factOf(e, "Masquerade")
	switch {
	case result.Outcome != "dnat" && masquerade.Text != "",
		result.Masquerade && !strings.HasPrefix(masquerade.Text, "yes: "),
		result.Outcome == "dnat" && !result.Masquerade && len(result.Hairpin) == 0 &&
			!strings.HasPrefix(masquerade.Text, "no: "):
		t.Errorf("%s, masquerade %v: %q", result.Outcome, result.Masquerade, masquerade.Text)
	}
	if result.Uneven || factOf(e, "Broken list").Text != "" || factOf(e, "Foreign rule").Text != "" {
		t.Errorf("a table of ours is called broken: %+v", e.Facts)
	}
}

func factOf(e readback.Explanation, topic string) (fact readback.Fact) {
	for _, f := range e.Facts {
		if f.Topic == topic {
			return f
		}
	}
	return fact
}

// TestTraceOfBrokenTables: what is missing shows.
func TestTraceOfBrokenTables(t *testing.T) {
	p := clusterPort(0, 5)
	packet := nft.Packet{Source: netip.MustParseAddr("192.0.2.1"), Destination: p.ClusterIP, Protocol: 6, Port: 80,
		Interface: "eth0"}
	key := layout.FrontendKey(p.ClusterIP, 6, 80)
	for name, tt := range map[string]struct {
		missing []int // indexes
		holes   int
	}{
		"nothing":            {nil, 0},
		"an endpoint":        {[]int{1}, 1},
		"the first endpoint": {[]int{0}, 1},
		"two endpoints":      {[]int{0, 3}, 2},
	} {
		r := NewRuleset(testConfig())
		r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
		table := r.Want()[nft.IP]
		for _, index := range tt.missing {
			delete(table.Sets[clusterMap].Map, nft.IndexedKey(key, index))
		}
		result := table.Trace(packet)
		if result.Holes != tt.holes || result.Outcome != "dnat" || len(result.Endpoints) != 5-tt.holes ||
			tt.holes == 0 && result.Uneven {
			t.Errorf("without %s: %d holes, uneven %v, %s", name, result.Holes, result.Uneven, result.Outcome)
		}
	}
}

// TestTracePassesForeignRulesOver: they are named.
func TestTracePassesForeignRulesOver(t *testing.T) {
	r := NewRuleset(testConfig())
	r.Apply(cluster(1, 1))
	table := r.Want()[nft.IP]
	table.Chains[layout.ServicesChain].Rules = append([]nft.Rule{{nft.Raw{}}}, table.Chains[layout.ServicesChain].Rules...)
	e := readback.New(table).Explain(nft.Packet{Source: netip.MustParseAddr("10.244.0.1"),
		Destination: clusterPort(0, 1).ClusterIP, Protocol: 6, Port: 80, Interface: "eth0"})
	if got := factOf(e, "Foreign rule"); e.TraceResult.Outcome != "dnat" || got.By != "rule of services: # expressions: " {
		t.Errorf("%s, %+v", e.TraceResult.Outcome, got)
	}
}

// TestExplainForeignVerdicts explains elements that no kube-nft writes, in a table that was made
// up and in one that the nft program changed: what they do is told, and who says so.
func TestExplainForeignVerdicts(t *testing.T) {
	p := clusterPort(0, 2)
	chains := map[string]nft.Verdict{"accepts": nft.Accept, "drops": nft.Drop, "comes-back": nft.Return}
	for _, tt := range []struct {
		verdict         nft.Verdict
		outcome, reason string
		foreign         string // what the fact about it names
	}{
		{nft.Accept, "accept", "a rule or an element of another program accepts the packet",
			"element of services: 10.96.0.0 . tcp . 80 : accept"},
		{nft.Return, "accept", `an element of another program says "return" at this frontend of Service `, ""},
		{nft.Jump("cluster-4"), "dnat", "", ""},
		{nft.Jump("accepts"), "accept", "a rule or an element of another program accepts the packet",
			"rule of accepts: accept"},
		{nft.Jump("drops"), "drop", `an element of another program says "jump drops" at this frontend of Service `, ""},
		// as what is at a cluster IP, but no Service port
		{nft.Jump("comes-back"), "reject",
			`an element of another program says "jump comes-back" at this frontend of Service `, ""},
		{nft.Goto("drops"), "drop", `an element of another program says "goto drops" at this frontend of Service `, ""},
	} {
		check := func(t *testing.T, table *nft.Table) {
			t.Helper()
			e := readback.New(table).Explain(nft.Packet{Source: netip.MustParseAddr("10.244.0.1"), Destination: p.ClusterIP,
				Protocol: 6, Port: 80, Interface: "eth0"})
			if e.Outcome != tt.outcome || !strings.HasPrefix(e.Reason, tt.reason) || (e.Reason == "") != (tt.reason == "") {
				t.Errorf("%s because of %q, want %s because of %q", e.Outcome, e.Reason, tt.outcome, tt.reason)
			}
			if got := factOf(e, "Policy").Text; got != "no kube-nft gives this verdict: "+tt.verdict.String() {
				t.Errorf("policy: %q", got)
			}
			if got := factOf(e, "Foreign rule").By; got != tt.foreign {
				t.Errorf("foreign is %q, want %q", got, tt.foreign)
			}
			slices.SortFunc(e.Endpoints, netip.AddrPort.Compare)
			if tt.outcome == "dnat" && !slices.Equal(e.Endpoints, p.Cluster) {
				t.Errorf("endpoints %v, want %v", e.Endpoints, p.Cluster)
			}
		}
		newRuleset := func() *Ruleset {
			r := NewRuleset(testConfig())
			r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
			return r
		}
		t.Run(tt.verdict.String(), func(t *testing.T) {
			table := newRuleset().Want()[nft.IP]
			for name, verdict := range chains {
				table.Chains[name] = &nft.Chain{Name: name, Rules: []nft.Rule{{verdict}}}
			}
			table.Sets[layout.ServicesMap].Map[layout.FrontendKey(p.ClusterIP, 6, 80)] = nft.Element{Verdict: &tt.verdict}
			check(t, table)
		})
		t.Run(tt.verdict.String()+" in the kernel", func(t *testing.T) {
			lab.New(t)
			k := lab.Open(t, kernel.Open)
			commit(t, k, change.Diff(nft.Tables{}, newRuleset().Want()))
			for name, verdict := range chains {
				lab.Run(t, "", "nft", "add", "chain", "ip", "kube-nft", name)
				lab.Run(t, "", "nft", "add", "rule", "ip", "kube-nft", name, verdict.String())
			}
			const frontend = "10.96.0.0 . tcp . 80"
			lab.Run(t, "", "nft", "delete", "element", "ip", "kube-nft", layout.ServicesMap, "{ "+frontend+" }")
			lab.Run(t, "", "nft", "add", "element", "ip", "kube-nft", layout.ServicesMap,
				"{ "+frontend+" : "+tt.verdict.String()+" }")
			have, _, err := k.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			check(t, have[nft.IP])
		})
	}
}

// TestExplainForeignRule: a rule that leads straight to a chain of ours is explained without a
// Service.
func TestExplainForeignRule(t *testing.T) {
	r := NewRuleset(testConfig())
	port := clusterPort(0, 3)
	r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{port}})
	table := r.Want()[nft.IP]
	chain := table.Chains[layout.ServicesChain]
	chain.Rules = append([]nft.Rule{{nft.Goto("cluster-4")}}, chain.Rules...)
	e := readback.New(table).Explain(nft.Packet{Source: netip.MustParseAddr("203.0.113.1"), Destination: port.ClusterIP,
		Protocol: 6, Port: 80, Interface: "eth0"})
	if e.Outcome != "dnat" || e.Service != nil || len(e.Endpoints) != 3 {
		t.Errorf("got %+v", e)
	}
}
