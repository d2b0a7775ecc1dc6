package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A Host is where to look for what a migration depends on besides rules. The zero value is
// the host of the caller.
type Host struct {
	Proc    string // a proc file system; empty: /proc
	Root    string // the node's file system, for programs and configuration; empty: /
	Release string // of the kernel, as uname -r says
	IP6     bool   // IPv6 Services are to be served
}

// Checks looks at sysctls, modules, the kernel, the nft program and other programs that
// have a say in what becomes of packets. It runs no program and needs no privilege.
func (h Host) Checks() (checks []Check) {
	for _, look := range []func() []Check{h.forwarding, h.liberal, h.localnet, h.bridge, h.tracking, h.nftProgram, h.firewalls, h.network} {
		checks = append(checks, look()...)
	}
	return checks
}

// sysctl returns the value of a kernel parameter.
func (h Host) sysctl(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(cmp.Or(h.Proc, "/proc"), "sys", strings.ReplaceAll(name, ".", "/")))
	return strings.TrimSpace(string(text)), err
}

// one checks one kernel parameter; judge completes the check from the value.
func (h Host) one(name string, judge func(value string, c *Check)) []Check {
	value, err := h.sysctl(name)
	c := Check{Level: OK, About: "sysctl " + name, Found: value}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		c.Level, c.Found = Unknown, err.Error()
	default:
		judge(value, &c)
	}
	return []Check{c}
}

// forwarding: without it, packets for endpoints on other hosts or in pods are dropped.
func (h Host) forwarding() []Check {
	judge := func(name string) func(string, *Check) {
		return func(value string, c *Check) {
			if value != "0" {
				c.Means = "packets are forwarded to endpoints"
				return
			}
			c.Level, c.Means = Warning, "packets of others that are addressed to Services are not forwarded"
			c.Do = "sysctl -w " + name + "=1; the network plug-in usually sets it"
		}
	}
	checks := h.one("net.ipv4.ip_forward", judge("net.ipv4.ip_forward"))
	if h.IP6 {
		checks = append(checks, h.one("net.ipv6.conf.all.forwarding", judge("net.ipv6.conf.all.forwarding"))...)
	}
	return checks
}

// liberal: kube-proxy's iptables mode drops packets that connection tracking calls invalid,
// kube-nft leaves them; on old kernels an endpoint may answer one with a reset.
func (h Host) liberal() []Check {
	return h.one("net.netfilter.nf_conntrack_tcp_be_liberal", func(value string, c *Check) {
		switch {
		case value != "0":
			c.Means = "packets outside a TCP window are translated like all others"
		case atLeast(h.Release, 6, 1):
			c.Means = "right for this kernel, " + h.Release
		default:
			c.Level = Warning
			c.Means = fmt.Sprintf("kernel %s, before 6.1, calls late packets invalid and does not translate them; "+
				"kube-proxy's iptables mode drops them, kube-nft does not, and they can reset a connection", h.Release)
			c.Do = "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1, or --conntrack-tcp-be-liberal"
		}
	})
}

// atLeast compares the release of a kernel with a version.
func atLeast(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a > major || a == major && b >= minor
}

// localnet: what kube-proxy's iptables mode sets for node ports at localhost.
func (h Host) localnet() []Check {
	return h.one("net.ipv4.conf.all.route_localnet", func(value string, c *Check) {
		c.Means = "addresses of 127.0.0.0/8 stay on the host"
		if value == "0" {
			return
		}
		c.Level = Note
		c.Means = "kube-proxy set it to serve node ports at 127.0.0.1; kube-nft needs it for nothing else and leaves it"
		c.Do = "if node ports at localhost are not asked for, set it to 0 when kube-proxy is gone for good"
	})
}

// bridge: pods on one bridge reach each other's Services only if bridged packets are seen.
func (h Host) bridge() []Check {
	return h.one("net.bridge.bridge-nf-call-iptables", func(value string, c *Check) {
		c.Means = "bridged packets pass our chains as well"
		if value == "0" {
			c.Level = Note
			c.Means = "replies between pods on one bridge bypass translation; it was so with kube-proxy"
			c.Do = "sysctl -w net.bridge.bridge-nf-call-iptables=1 if pods share a bridge"
		}
	})
}

// tracking: the module of connection tracking may not have been loaded yet.
func (h Host) tracking() []Check {
	c := Check{Level: OK, About: "module nf_conntrack", Found: "loaded or built in"}
	if _, err := h.sysctl("net.netfilter.nf_conntrack_max"); err != nil {
		c.Level, c.Found = Note, "not loaded"
		c.Means = "the first commit loads it; conntrack settings are applied after that"
	}
	return []Check{c}
}

// nftVersion matches the version in the program's text.
var nftVersion = regexp.MustCompile(`\x00([0-9]+\.[0-9]+\.[0-9]+)\x00`)

// nftProgram looks for the administrator's nft, which is not ours to run and which old
// rules and ours must not crash.
func (h Host) nftProgram() []Check {
	c := Check{Level: OK, About: "program nft", Found: "not installed", Means: "kube-nft needs none"}
	for _, dir := range []string{"usr/sbin", "sbin", "usr/local/sbin", "usr/bin"} {
		text, err := os.ReadFile(filepath.Join(cmp.Or(h.Root, "/"), dir, "nft"))
		if err != nil {
			continue
		}
		version := ""
		if m := nftVersion.FindSubmatch(text); m != nil {
			version = string(m[1])
		}
		judgeNFT(version, &c)
		break
	}
	return []Check{c}
}

// judgeNFT tells what is known of a version of nft, for those who list our tables with it.
func judgeNFT(version string, c *Check) {
	c.Found = "version " + cmp.Or(version, "unknown")
	major, minor, patch := numbers(version)
	switch {
	case version == "":
		c.Level, c.Means = Note, "versions before 1.0.1 may crash on listing tables of kube-nft; kube-nft itself needs none"
	case major < 1 || major == 1 && minor == 0 && patch < 1:
		c.Level, c.Means = Warning, "it may crash on listing our tables and those of kube-proxy's nftables mode; kube-nft itself does not use it"
		c.Do = "do not run nft list ruleset from cron jobs or firewall scripts; update it"
	case major == 1 && minor == 0:
		c.Means = "lists our tables (tested with 1.0.6); it may crash on tables that nft 1.1.3 or later wrote. kube-nft does not use it"
	default:
		c.Means = "lists our tables; an older nft in a container may crash on what this one wrote. kube-nft does not use either"
	}
}

// numbers takes a version apart.
func numbers(version string) (major, minor, patch int) {
	fields := append(strings.Split(version, "."), "", "", "")
	for i, n := range []*int{&major, &minor, &patch} {
		*n, _ = strconv.Atoi(fields[i]) // empty is 0
	}
	return major, minor, patch
}
