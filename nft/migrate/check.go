package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/firewall"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/words"
)

// A Level says how much a Check matters.
type Level string

// The levels. Their spelling is part of the JSON form of a plan.
const (
	OK      Level = "ok"
	Note    Level = "note"    // something will change
	Warning Level = "warning" // some clients or programs may lose something
	Blocks  Level = "blocks"  // kube-nft cannot work here
	Unknown Level = "unknown" // it could not be read
)

// A Check is one thing about the node that matters for a migration.
type Check struct {
	Level Level  `json:"level"`
	About string `json:"about"` // "sysctl net.ipv4.ip_forward"
	Found string `json:"found"` // what was found
	Means string `json:"means,omitempty"`
	Do    string `json:"do,omitempty"` // what to do about it; empty: nothing
}

// String returns the check without its level, for an operator.
func (c Check) String() string {
	text := c.About + ": " + c.Found
	if c.Means != "" {
		text += " — " + c.Means
	}
	if c.Do != "" {
		text += ". Do: " + c.Do
	}
	return text
}

// NotSeen is the check for something that could not be read.
func NotSeen(about string, err error) Check {
	return Check{Level: Unknown, About: about, Found: err.Error()}
}

// KernelChecks finds out whether the kernel can do what the ruleset needs, and whether our tables
// exist.
func KernelChecks(ctx context.Context) (checks []Check, ip6 bool) {
	client, err := kernel.Open()
	if err != nil {
		return []Check{NotSeen("kernel features", err)}, true
	}
	defer client.Close()
	features, err := client.Probe(ctx)
	c := Check{
		Level: OK, About: "kernel features", Found: "all there, for IPv4 and IPv6",
		Means: "each was tried in a table of its own that no packet meets",
	}
	var missing *kernel.FeatureError
	switch {
	case errors.As(err, &missing):
		c.Level, c.Found, c.Means = Blocks, missing.Error(), ""
	case err != nil: // it is not known what is missing
		c, features.IP6 = NotSeen(c.About, err), true
	case !features.IP6:
		c.Level, c.Found = Warning, "all there for IPv4, no nat chains for IPv6"
		c.Means = "IPv6 Services will not be served"
	}
	t := Check{Level: OK, About: "tables of kube-nft", Found: "none yet"}
	tables, _, err := client.Read(ctx)
	switch {
	case err != nil:
		t = NotSeen(t.About, err)
	case len(tables) > 0:
		t.Found = fmt.Sprintf("in %d families", len(tables))
		t.Means = "they serve Services already, because their chains come before kube-proxy's; the takeover updates them"
	}
	return []Check{c, t}, features.IP6
}

// FirewallChecks are about rules of other programs that refuse connections to endpoints, of which targets are some;
// mark is that of masqueraded packets. They leave out what kube-proxy's iptables mode accepts, as its rules go. They
// also name a program that follows the removal of kube-proxy's tables.
func FirewallChecks(ctx context.Context, inventory *legacy.Inventory, targets []firewall.Target,
	mark uint32) (checks []Check) {
	const about = "rules at forward"
	client, err := kernel.Open()
	if err != nil {
		return nil // KernelChecks says so
	}
	defer client.Close()
	rules, err := firewall.Read(ctx, client)
	if err != nil {
		return []Check{NotSeen(about, err)}
	}
	if rules.HasTable("calico") && followedByCalico(inventory.Parts) {
		checks = append(checks, calicoCheck)
	}
	rules.Without = "KUBE-FORWARD"
	found, err := rules.Survey(ctx, targets, mark)
	switch {
	case errors.Is(err, firewall.ErrTooMany), errors.Is(err, legacy.ErrTooLarge):
		return append(checks, Check{Level: Note, About: about, Found: err.Error(),
			Means: "whether they refuse connections to endpoints is not known"})
	case err != nil:
		checks = append(checks, NotSeen(about, err))
	}
	for _, f := range found {
		c := Check{Level: Warning, About: about, Found: f.String(), Do: f.Remedy,
			Means: "the kernel forwards the packets that our tables translate, and our tables cannot override another table's " +
				"refusal; the takeover removes kube-proxy's chain KUBE-FORWARD, which may have accepted these packets"}
		switch {
		case f.Unless != "":
			c.Level = Note
		case f.Firewalld:
			c.Level, c.About = Blocks, "firewalld"
			c.Means = "no Service with endpoints works, as with StrictForwardPorts=yes"
		}
		checks = append(checks, c)
	}
	return checks
}

// followedByCalico reports whether kube-proxy has tables whose removal makes Calico change its dataplane.
func followedByCalico(parts []legacy.Part) bool {
	ofProxy := func(p legacy.Part) bool { return p.Backend == legacy.ProxyTables }
	kept := func(p legacy.Part) bool { return ofProxy(p) && len(p.Kept) > 0 }
	return slices.ContainsFunc(parts, ofProxy) && !slices.ContainsFunc(parts, kept)
}

// calicoCheck is about Calico's setting Auto. Felix looks at kube-proxy's table every 15 s (felix/nftables/utils.go and
// felix/dataplane/linux/int_dataplane.go of Calico 3.33).
var calicoCheck = Check{
	Level: Warning, About: "Calico", Found: "its nftables dataplane runs, and kube-proxy runs in nftables mode",
	Means: "with nftablesMode Auto, the default, Calico changes to its iptables dataplane and rebuilds the policies of " +
		"all pods, up to 15 s after the table kube-proxy has gone",
	Do: `before the takeover, kubectl patch felixconfiguration default --type merge -p ` +
		`'{"spec":{"nftablesMode":"Enabled"}}', or linuxDataplane: Nftables in the Installation of its operator; or run ` +
		`kube-nft with --keep-kube-proxy-table`,
}

// liveCheck is about running kube-proxies.
func liveCheck(processes []legacy.Process) Check {
	c := Check{Level: OK, About: "kube-proxy", Found: "no process found"}
	if len(processes) == 0 {
		return c
	}
	c.Level, c.Found = Warning, describe(processes)
	c.Means = "kube-proxy writes its rules again when they are missing"
	c.Do = "stop kube-proxy on this node; its rules stay and serve until kube-nft replaces them"
	if slices.ContainsFunc(processes, func(p legacy.Process) bool { return p.Embedded }) {
		c.Do = "if this program runs kube-proxy, start it with --disable-kube-proxy (k3s), or without kube-proxy in its " +
			"arguments"
	}
	return c
}

// describe names processes for an operator.
func describe(processes []legacy.Process) string {
	const room, most = 60, 5 // characters of a command line, and processes, in a message
	var list []string
	for _, p := range processes {
		command := nft.Visible(p.Command)
		if text := []rune(command); len(text) > room {
			command = string(text[:room]) + "…"
		}
		if p.PID == 0 {
			list = append(list, "a process "+p.Command)
		} else {
			list = append(list, fmt.Sprintf("process %d (%s)", p.PID, command))
		}
	}
	return words.Some(list, most, ", ")
}
