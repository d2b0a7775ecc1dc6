package migrate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A Host says where to look for what a migration depends on besides rules. The zero value is the
// caller's host.
type Host struct {
	Proc    string // a proc file system; empty: /proc
	Root    string // the node's file system, for programs and configuration; empty: /
	Release string // of the kernel, as uname -r says
	IP6     bool   // serve IPv6 Services
}

// Checks looks at sysctls, modules, the kernel, the nft program, and other programs that affect
// packets. It runs no program and needs no privilege.
func (h Host) Checks() []Check {
	tracking := Check{Level: OK, About: "module nf_conntrack", Found: "loaded or built in"}
	if _, err := h.sysctl("net.netfilter.nf_conntrack_max"); err != nil {
		tracking.Level, tracking.Found = Note, "not loaded"
		tracking.Means = "the first commit loads it; conntrack settings are applied after that"
	}
	return slices.Concat(h.processes(), h.sysctls(), []Check{tracking}, h.nftProgram(), h.firewalls(), h.savedRules(),
		h.network())
}

// processes looks whether the node's processes can be seen: in a container with a process namespace of
// its own, the first process is the container's.
func (h Host) processes() []Check {
	first := legacy.Arguments(filepath.Join(cmp.Or(h.Proc, "/proc"), "1"))
	if len(first) == 0 || filepath.Base(first[0]) != "kube-nft" {
		return nil
	}
	return []Check{{
		Level: Note, About: "processes", Found: "kube-nft sees only those of this container",
		Means: "kube-nft does not detect kube-proxy and firewall programs that run on the node",
		Do:    "mount the node's /proc, and name it with --host-proc",
	}}
}

// sysctls looks at kernel parameters. A missing parameter gives no check.
func (h Host) sysctls() (checks []Check) {
	look := func(name string, judge func(value string, c *Check)) {
		value, err := h.sysctl(name)
		switch {
		case err == nil:
			c := Check{Level: OK, About: "sysctl " + name, Found: value}
			judge(value, &c)
			checks = append(checks, c)
		case !errors.Is(err, fs.ErrNotExist):
			checks = append(checks, NotSeen("sysctl "+name, err))
		}
	}
	// Without forwarding, the kernel drops packets for endpoints on other hosts or in pods.
	forwarding := []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"}
	if !h.IP6 {
		forwarding = forwarding[:1]
	}
	for _, name := range forwarding {
		look(name, func(value string, c *Check) {
			if c.Means = "packets are forwarded to endpoints"; value == "0" {
				c.Level, c.Means = Warning, "packets of others that are addressed to Services are not forwarded"
				c.Do = "sysctl -w " + name + "=1; the network plug-in usually sets it"
			}
		})
	}
	// kube-proxy's iptables mode drops packets that connection tracking calls invalid; kube-nft lets
	// them pass. On old kernels an endpoint may answer one with a reset.
	look("net.netfilter.nf_conntrack_tcp_be_liberal", func(value string, c *Check) {
		major, minor, _ := version(h.Release)
		switch {
		case value != "0":
			c.Means = "packets outside a TCP window are translated like all others"
		case major > 6 || major == 6 && minor >= 1:
			c.Means = fmt.Sprintf("kernel %s translates late packets, but no packets beyond the TCP window: these can reset a "+
				"connection, as with kube-proxy's nftables mode", h.Release)
			c.Do = "use --conntrack-tcp-be-liberal if the network routes packets of one connection over several paths, or if " +
				"connections are reset"
		default:
			c.Level = Warning
			c.Means = fmt.Sprintf("kernel %s, before 6.1, marks late packets as invalid and does not translate them; "+
				"kube-proxy's iptables mode drops them; kube-nft does not, so they can reset a connection", h.Release)
			c.Do = "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1, or --conntrack-tcp-be-liberal"
		}
	})
	look("net.ipv4.conf.all.route_localnet", func(value string, c *Check) {
		if c.Means = "addresses of 127.0.0.0/8 stay on the host"; value != "0" {
			c.Level = Note
			c.Means = "kube-proxy set it to serve node ports at 127.0.0.1; kube-nft needs it for nothing else and leaves it"
			c.Do = "if no client uses node ports at 127.0.0.1, set it to 0 after you have removed kube-proxy for good"
		}
	})
	// Pods on one bridge reach each other's Services only if bridged packets pass the chains.
	look("net.bridge.bridge-nf-call-iptables", func(value string, c *Check) {
		if c.Means = "bridged packets pass our chains as well"; value == "0" {
			c.Level = Note
			c.Means = "replies between pods on one bridge bypass translation, as with kube-proxy"
			c.Do = "sysctl -w net.bridge.bridge-nf-call-iptables=1 if pods share a bridge"
		}
	})
	return checks
}

// sysctl returns the value of a kernel parameter.
func (h Host) sysctl(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(cmp.Or(h.Proc, "/proc"), "sys", strings.ReplaceAll(name, ".", "/")))
	return strings.TrimSpace(string(text)), err
}

// nftVersion matches the version in the nft program's bytes.
var nftVersion = regexp.MustCompile(`\x00([0-9]+\.[0-9]+\.[0-9]+)\x00`)

// nftProgram looks for the administrator's nft. kube-nft must not run it, and neither old rules nor
// ours may crash it.
func (h Host) nftProgram() []Check {
	c := Check{Level: OK, About: "program nft", Found: "not installed", Means: "kube-nft needs none"}
	for _, dir := range []string{"usr/sbin", "sbin", "usr/local/sbin", "usr/bin"} {
		text, err := os.ReadFile(filepath.Join(cmp.Or(h.Root, "/"), dir, "nft"))
		if err != nil {
			continue
		}
		found := ""
		if m := nftVersion.FindSubmatch(text); m != nil {
			found = string(m[1])
		}
		judgeNFT(found, &c)
		break
	}
	return []Check{c}
}

// judgeNFT says what is known of a version of nft, for operators who list our tables with it.
func judgeNFT(found string, c *Check) {
	c.Found = "version " + cmp.Or(found, "unknown")
	major, minor, patch := version(found)
	switch {
	case found == "":
		c.Level, c.Means = Note, "versions before 1.0.1 may crash on listing tables of kube-nft; kube-nft itself needs none"
	case major < 1 || major == 1 && minor == 0 && patch < 1:
		c.Level, c.Means = Warning,
			"it may crash on listing our tables and those of kube-proxy's nftables mode; kube-nft itself does not use it"
		c.Do = "do not run nft list ruleset from cron jobs or firewall scripts; update it"
	case major == 1 && minor == 0:
		c.Means = "lists our tables (tested with 1.0.6); it may crash on tables that nft 1.1.3 or later wrote. kube-nft " +
			"does not use it"
	default:
		c.Means = "lists our tables; an older nft in a container may crash on what this one wrote. kube-nft does not use " +
			"either"
	}
}

// version splits a version; missing parts are 0.
func version(text string) (major, minor, patch int) {
	_, _ = fmt.Sscanf(text, "%d.%d.%d", &major, &minor, &patch)
	return major, minor, patch
}

// notDecided is what a firewall's rules at the hook input mean for Services, under any proxy.
const notDecided = "its rules at the hook input do not see connections to node ports and load-balancer addresses, " +
	"because the kernel translates these before: docs/firewalls.md says how to close them. The rules do see the health " +
	"port, 10256, and health-check node ports: if they refuse these, load balancers stop using this node"

// firewalls looks for programs that manage the host's firewall. What they refuse at forward, FirewallChecks find in
// the kernel.
func (h Host) firewalls() (checks []Check) {
	if h.running("firewalld") {
		checks = append(checks, Check{
			Level: Note, About: "firewalld", Found: "runs",
			Means: notDecided + "; new connections wait while firewalld reloads",
			Do: "firewall-cmd --permanent --add-port=10256/tcp, the same with health-check node ports, and " +
				"firewall-cmd --reload",
		})
	}
	ufw, _ := os.ReadFile(filepath.Join(cmp.Or(h.Root, "/"), "etc/ufw/ufw.conf"))
	if slices.Contains(strings.Fields(string(ufw)), "ENABLED=yes") {
		checks = append(checks, Check{Level: Note, About: "ufw", Found: "enabled", Means: notDecided,
			Do: "ufw allow 10256/tcp, and the same with health-check node ports"})
	}
	return checks
}

// savedRules looks into the files that distributions load at boot, for rules that `nft list ruleset` or
// iptables-save has put there with the host's own.
func (h Host) savedRules() (checks []Check) {
	for _, path := range []string{"etc/nftables.conf", "etc/sysconfig/nftables.conf", "etc/iptables/rules.v4",
		"etc/iptables/rules.v6", "etc/sysconfig/iptables", "etc/sysconfig/ip6tables"} {
		text, err := os.ReadFile(filepath.Join(cmp.Or(h.Root, "/"), path))
		if err != nil {
			continue
		}
		about := "saved rules /" + path
		if savedTable(text, "kube-nft") {
			checks = append(checks, Check{
				Level: Warning, About: about, Found: "has tables of kube-nft",
				Means: "if an endpoint has changed since, or kube-nft owns its tables, nft refuses the whole file, and the " +
					"host's own rules in it are not in force",
				Do: "take the tables kube-nft out of the file; docs/operations.md says how to save your own tables",
			})
		}
		if savedTable(text, "kube-proxy") || bytes.Contains(text, []byte("\n:KUBE-SERVICES ")) {
			checks = append(checks, Check{
				Level: Warning, About: about, Found: "has rules of kube-proxy",
				Means: "they come back at the next boot, and send packets to endpoints of the time when they were saved",
				Do:    "take the rules of kube-proxy out of the file before the node boots again",
			})
		}
	}
	return checks
}

// savedTable reports whether a script of nft declares a table.
func savedTable(text []byte, name string) bool {
	return regexp.MustCompile(`(?m)^\s*(add\s+)?table\s+(ip|ip6)\s+` + name + `[\s{]`).Match(text)
}

// running reports whether a process has an argument that ends in the program's name; the first
// argument may be an interpreter.
func (h Host) running(program string) bool {
	processes, _ := filepath.Glob(filepath.Join(cmp.Or(h.Proc, "/proc"), "[0-9]*"))
	return slices.ContainsFunc(processes, func(dir string) bool {
		args := legacy.Arguments(dir)
		return slices.ContainsFunc(args[:min(len(args), 3)], func(a string) bool { return filepath.Base(a) == program })
	})
}

// network looks at the configuration of network plug-ins that matter.
func (h Host) network() (checks []Check) {
	dir := filepath.Join(cmp.Or(h.Root, "/"), "etc/cni/net.d")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".conf" && ext != ".conflist" && ext != ".json" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		for _, plugin := range pluginsOf(text) {
			if c, ok := plugin.check(); ok {
				checks = append(checks, c)
			}
		}
	}
	return checks
}

// A plugin is one entry of a network configuration (CNI specification 1.0).
type plugin struct {
	Type      string `json:"type"`
	MarkChain string `json:"externalSetMarkChain"` // of portmap
}

// pluginsOf reads a network configuration: one plug-in or a list of them.
func pluginsOf(text []byte) []plugin {
	var conf struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if json.Unmarshal(text, &conf) != nil {
		return nil
	}
	if conf.Type != "" {
		return append(conf.Plugins, conf.plugin)
	}
	return conf.Plugins
}

// check returns what a plug-in means for a migration, or false if nothing.
func (p plugin) check() (Check, bool) {
	c := Check{Level: Note, About: "network plug-in " + p.Type, Found: "configured"}
	switch p.Type {
	case "cilium-cni":
		c.Level = Warning
		c.Means = "with kubeProxyReplacement it serves Services itself, before kube-nft sees their packets"
		c.Do = "cilium status on this node; if KubeProxyReplacement is True, do not run kube-nft"
	case "calico":
		c.Means = "in its eBPF mode it serves Services itself; its other modes work together with kube-nft"
		c.Do = "if bpfEnabled is true in its FelixConfiguration, do not run kube-nft"
	case "kube-router":
		c.Means = "with --run-service-proxy it serves Services itself"
		c.Do = "start it with --run-service-proxy=false"
	case "portmap":
		if p.MarkChain == "" {
			return c, false
		}
		c.Means = "it asks for masquerading by " + p.MarkChain + ", which stays if it is in use"
		c.Do = "remove externalSetMarkChain when convenient"
	default:
		return c, false
	}
	return c, true
}
