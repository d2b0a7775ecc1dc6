package migrate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A Level says how much a Check matters.
type Level string

// The levels. Their spelling is part of the JSON form of a plan.
const (
	OK      Level = "ok"
	Note    Level = "note"    // something will be another way than before
	Warning Level = "warning" // somebody may lose something
	Blocks  Level = "blocks"  // kube-nft cannot work here
	Unknown Level = "unknown" // it could not be looked at
)

// A Check is one thing about the node that matters for a migration.
type Check struct {
	Level Level  `json:"level"`
	About string `json:"about"` // "sysctl net.ipv4.ip_forward"
	Found string `json:"found"` // what is the case
	Means string `json:"means,omitempty"`
	Do    string `json:"do,omitempty"` // what to do about it; empty: nothing
}

// liveCheck is about kube-proxies that run.
func liveCheck(processes []legacy.Process) Check {
	c := Check{Level: OK, About: "kube-proxy", Found: "no process of it is to be seen"}
	if len(processes) == 0 {
		return c
	}
	c.Level, c.Found = Warning, Describe(processes)
	c.Means = "it writes its rules again as soon as it misses them"
	c.Do = "stop it on this node; its rules stay and serve until they are taken over"
	if slices.ContainsFunc(processes, func(p legacy.Process) bool { return p.Embedded }) {
		c.Do = "start it with --disable-kube-proxy (k3s) or without kube-proxy in its arguments, if it runs one"
	}
	return c
}

// Describe names processes for an operator.
func Describe(processes []legacy.Process) string {
	var list []string
	for _, p := range processes {
		if p.PID == 0 {
			list = append(list, "a process "+p.Command)
			continue
		}
		list = append(list, fmt.Sprintf("process %d (%s)", p.PID, firstWords(p.Command)))
	}
	return strings.Join(list, ", ")
}

// firstWords cuts a command line to what fits into a message.
func firstWords(command string) string {
	const room = 60
	if len(command) <= room {
		return command
	}
	return command[:room] + "…"
}

// forwardChecks are about hosts that drop forwarded packets unless a rule accepts them:
// kube-proxy's iptables mode brings such a rule, KUBE-FORWARD.
func forwardChecks(parts []legacy.Part) (checks []Check) {
	for i := range parts {
		p := &parts[i]
		if p.Table != "filter" || !slices.Contains(p.Drops, "FORWARD") {
			continue
		}
		c := Check{
			Level: Note, About: "policy of FORWARD in " + partName(p), Found: "drop",
			Means: "packets of pods need a rule that accepts them; kube-nft has none",
		}
		if slices.Contains(p.Chains, "KUBE-FORWARD") {
			c.Level = Warning
			c.Means = "until now kube-proxy's chain KUBE-FORWARD accepts packets of Services; it goes"
			c.Do = "see that the network plug-in accepts pod traffic (-s and -d the pod CIDR), or set the policy to ACCEPT"
		}
		checks = append(checks, c)
	}
	return checks
}
