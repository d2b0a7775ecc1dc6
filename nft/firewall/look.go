package firewall

import (
	"context"
	"os"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// Look says what keeps connections to endpoints from being forwarded: the kernel itself, or rules of other programs.
// mark is that of masqueraded packets. An error says what could not be looked at; the findings hold nevertheless.
func Look(ctx context.Context, k *kernel.Client, targets []Target, mark uint32) ([]Finding, error) {
	var list []Finding
	for _, family := range nft.Families {
		name := ForwardingOff(family)
		if name == "" || len(targets) == 0 {
			continue
		}
		if kinds := trials(targets, mark, family); len(kinds) > 0 {
			list = append(list, Finding{Where: "sysctl " + name, By: "0, which", Refused: len(kinds), Tried: len(kinds),
				Example: kinds[0].text, Remedy: "sysctl -w " + name + "=1"})
		}
	}
	rules, err := Read(ctx, k)
	if err != nil {
		return list, err
	}
	found, err := rules.Survey(ctx, targets, mark)
	return append(list, found...), err
}

// ForwardingOff returns the kernel parameter by which the kernel forwards no packet of a family in this network
// namespace; empty if it forwards.
func ForwardingOff(f nft.Family) string {
	name := "net.ipv4.ip_forward"
	if f == nft.IP6 {
		name = "net.ipv6.conf.all.forwarding"
	}
	value, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil || strings.TrimSpace(string(value)) != "0" {
		return ""
	}
	return name
}
