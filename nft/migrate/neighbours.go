package migrate

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// firewalls looks for programs that own the host's firewall. What they drop stays dropped:
// a nat chain accepts nothing.
func (h Host) firewalls() (checks []Check) {
	if h.running("firewalld") {
		checks = append(checks, Check{
			Level: Note, About: "firewalld", Found: "runs",
			Means: "its zones go on deciding about node ports and pods, as with kube-proxy; a reload leaves our tables alone",
			Do:    "see that pod interfaces are in the zone trusted and node ports are open",
		})
	}
	if h.contains("etc/ufw/ufw.conf", "ENABLED=yes") {
		c := Check{Level: Note, About: "ufw", Found: "enabled", Means: "its rules go on deciding about node ports, as with kube-proxy"}
		if !h.contains("etc/default/ufw", `DEFAULT_FORWARD_POLICY="ACCEPT"`) {
			c.Level = Warning
			c.Means += "; it drops forwarded packets, which kube-proxy's chain KUBE-FORWARD accepted for Services"
			c.Do = `set DEFAULT_FORWARD_POLICY="ACCEPT" in /etc/default/ufw, or ufw route allow for the pod CIDR`
		}
		checks = append(checks, c)
	}
	return checks
}

// contains reports whether a file of the node has a line.
func (h Host) contains(path, line string) bool {
	text, err := os.ReadFile(filepath.Join(cmp.Or(h.Root, "/"), path))
	return err == nil && slices.Contains(strings.Fields(string(text)), line)
}

// running reports whether a process has an argument that ends in the program's name: an
// interpreter may stand before it.
func (h Host) running(program string) bool {
	lines, _ := filepath.Glob(filepath.Join(cmp.Or(h.Proc, "/proc"), "[0-9]*", "cmdline"))
	for _, path := range lines {
		text, err := os.ReadFile(path)
		args := strings.Split(string(text), "\x00")
		if err == nil && slices.ContainsFunc(args[:min(len(args), 3)], func(a string) bool { return filepath.Base(a) == program }) {
			return true
		}
	}
	return false
}

// network looks at the configuration of network plug-ins for those that matter.
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

// pluginsOf reads a network configuration: one plug-in or a list.
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

// check says what a plug-in means for a migration, or false if nothing.
func (p plugin) check() (Check, bool) {
	c := Check{Level: Note, About: "network plug-in " + p.Type, Found: "configured"}
	switch p.Type {
	case "cilium-cni":
		c.Level = Warning
		c.Means = "with kubeProxyReplacement it serves Services itself, before kube-nft sees their packets"
		c.Do = "cilium status on this node; if KubeProxyReplacement is True, do not run kube-nft"
	case "calico":
		c.Means = "in its eBPF mode it serves Services itself; its other modes work beside kube-nft"
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
