package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A Level says how much a Check matters.
type Level string

// The levels. Their spelling is part of the JSON form of a plan.
const (
	OK      Level = "ok"
	Note    Level = "note"    // something will change
	Warning Level = "warning" // somebody may lose something
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
	case err != nil:
		c = NotSeen(c.About, err)
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
		t.Means = "they win over kube-proxy's rules already; they will be brought up to date"
	}
	return []Check{c, t}, features.IP6
}

// FirewalldChecks are about the rules that firewalld has in the kernel. checks are those about the host,
// which may have read its configuration.
func FirewalldChecks(ctx context.Context, checks []Check) []Check {
	refuses, err := legacy.FirewalldRefuses(ctx)
	known := func(c Check) bool { return c.About == "firewalld" && c.Level == Warning }
	if err != nil || !refuses || slices.ContainsFunc(checks, known) { // what cannot be read, other checks say
		return nil
	}
	return []Check{{
		Level: Warning, About: "firewalld",
		Found: "its rules refuse forwarded packets that others translate, as with StrictForwardPorts=yes",
		Means: "those of Services too, unless a policy or the zone trusted accepts them",
		Do: "see that a policy accepts packets to the pod CIDR, or set StrictForwardPorts=no in " +
			"/etc/firewalld/firewalld.conf and reload firewalld",
	}}
}

// liveCheck is about running kube-proxies.
func liveCheck(processes []legacy.Process) Check {
	c := Check{Level: OK, About: "kube-proxy", Found: "no process of it is to be seen"}
	if len(processes) == 0 {
		return c
	}
	c.Level, c.Found = Warning, describe(processes)
	c.Means = "it writes its rules again as soon as it misses them"
	c.Do = "stop it on this node; its rules stay and serve until they are taken over"
	if slices.ContainsFunc(processes, func(p legacy.Process) bool { return p.Embedded }) {
		c.Do = "start it with --disable-kube-proxy (k3s) or without kube-proxy in its arguments, if it runs one"
	}
	return c
}

// describe names processes for an operator.
func describe(processes []legacy.Process) string {
	const room, most = 60, 5 // characters of a command line, and processes, in a message
	var list []string
	for i, p := range processes {
		if i == most {
			list = append(list, fmt.Sprintf("%d more", len(processes)-most))
			break
		}
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
	return strings.Join(list, ", ")
}

// forwardChecks are about hosts that drop forwarded packets unless a rule accepts them.
// kube-proxy's iptables mode has such a rule, in KUBE-FORWARD.
func forwardChecks(parts []legacy.Part) (checks []Check) {
	var accepts, others []string // tables with and without KUBE-FORWARD
	for i := range parts {
		p := &parts[i]
		switch {
		case p.Table != "filter" || !slices.Contains(p.Drops, "FORWARD"):
		case slices.Contains(p.Chains, "KUBE-FORWARD"):
			accepts = append(accepts, partName(p))
		default:
			others = append(others, partName(p))
		}
	}
	if len(accepts) > 0 {
		checks = append(checks, Check{
			Level: Warning, About: "policy of FORWARD in " + strings.Join(accepts, " and "), Found: "drop",
			Means: "until now kube-proxy's chain KUBE-FORWARD accepts packets of Services; it goes",
			Do:    "see that the network plug-in accepts pod traffic (-s and -d the pod CIDR), or set the policy to ACCEPT",
		})
	}
	if len(others) > 0 {
		checks = append(checks, Check{
			Level: Note, About: "policy of FORWARD in " + strings.Join(others, " and "), Found: "drop",
			Means: "packets of pods need a rule that accepts them; kube-nft has none",
		})
	}
	return checks
}

// partName says where a part is.
func partName(p *legacy.Part) string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s", p.Backend, p.Family, p.Table)), " ")
}
