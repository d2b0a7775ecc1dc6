package migrate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

// host writes the files of a node, below proc/ and root/.
func host(t *testing.T, files map[string]string) Host {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Host{Proc: filepath.Join(dir, "proc"), Root: filepath.Join(dir, "root"), Release: "5.15.0-91-generic",
		IP6: true}
}

// short returns checks as levels and subjects.
func short(checks []Check) (list []string) {
	for _, c := range checks {
		list = append(list, string(c.Level)+" "+c.About+": "+c.Found)
	}
	return list
}

func TestHostChecks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"nothing to see", nil, []string{
			"note module nf_conntrack: not loaded",
			"ok program nft: not installed",
		}},
		{"in a container", map[string]string{"proc/1/cmdline": "/kube-nft\x00--config=x\x00"}, []string{
			"note processes: kube-nft sees only those of this container",
			"note module nf_conntrack: not loaded",
			"ok program nft: not installed",
		}},
		{"all as it should be", map[string]string{
			"proc/sys/net/ipv4/ip_forward":                       "1\n",
			"proc/sys/net/ipv6/conf/all/forwarding":              "1\n",
			"proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal": "1\n",
			"proc/sys/net/netfilter/nf_conntrack_max":            "262144\n",
			"proc/sys/net/ipv4/conf/all/route_localnet":          "0\n",
			"proc/sys/net/bridge/bridge-nf-call-iptables":        "1\n",
			"root/usr/sbin/nft":                                  "\x7fELF\x00\x001.1.3\x00",
			"root/etc/cni/net.d/10-flannel.conflist":             `{"plugins":[{"type":"flannel"},{"type":"portmap"}]}`,
			"root/etc/ufw/ufw.conf":                              "ENABLED=no\n",
			"root/etc/nftables.conf":                             "flush ruleset\ntable ip kube-nft-mine {\n}\n",
			"root/etc/iptables/rules.v4":                         "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n",
			"proc/17/cmdline":                                    "/usr/bin/python3\x00/usr/bin/other\x00",
		}, []string{
			"ok sysctl net.ipv4.ip_forward: 1",
			"ok sysctl net.ipv6.conf.all.forwarding: 1",
			"ok sysctl net.netfilter.nf_conntrack_tcp_be_liberal: 1",
			"ok sysctl net.ipv4.conf.all.route_localnet: 0",
			"ok sysctl net.bridge.bridge-nf-call-iptables: 1",
			"ok module nf_conntrack: loaded or built in",
			"ok program nft: version 1.1.3",
		}},
		{"all as it should not be", map[string]string{
			"proc/sys/net/ipv4/ip_forward":                       "0\n",
			"proc/sys/net/ipv6/conf/all/forwarding":              "0\n",
			"proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal": "0\n",
			"proc/sys/net/netfilter/nf_conntrack_max":            "262144\n",
			"proc/sys/net/ipv4/conf/all/route_localnet":          "1\n",
			"proc/sys/net/bridge/bridge-nf-call-iptables":        "0\n",
			"root/usr/sbin/nft":                                  "\x00\x000.9.8\x00",
			"root/etc/cni/net.d/05-cilium.conflist":              `{"plugins":[{"type":"cilium-cni"}]}`,
			"root/etc/cni/net.d/10-calico.conflist":              `{"plugins":[{"type":"calico"},{"type":"portmap","externalSetMarkChain":"KUBE-MARK-MASQ"}]}`,
			"root/etc/cni/net.d/20-router.conf":                  `{"type":"kube-router"}`,
			"root/etc/cni/net.d/99.conf":                         `no JSON`,
			"root/etc/ufw/ufw.conf":                              "# ufw\nENABLED=yes\n",
			"root/etc/nftables.conf":                             "table ip kube-nft {\n}\ntable ip6 kube-proxy {\n}\n",
			"root/etc/iptables/rules.v6":                         "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n",
			"proc/17/cmdline":                                    "/usr/bin/python3\x00-s\x00/usr/sbin/firewalld\x00--nopid\x00",
		}, []string{
			"warning sysctl net.ipv4.ip_forward: 0",
			"warning sysctl net.ipv6.conf.all.forwarding: 0",
			"warning sysctl net.netfilter.nf_conntrack_tcp_be_liberal: 0",
			"note sysctl net.ipv4.conf.all.route_localnet: 1",
			"note sysctl net.bridge.bridge-nf-call-iptables: 0",
			"ok module nf_conntrack: loaded or built in",
			"warning program nft: version 0.9.8",
			"note firewalld: runs",
			"note ufw: enabled",
			"warning saved rules /etc/nftables.conf: has tables of kube-nft",
			"warning saved rules /etc/nftables.conf: has rules of kube-proxy",
			"warning saved rules /etc/iptables/rules.v6: has rules of kube-proxy",
			"warning network plug-in cilium-cni: configured",
			"note network plug-in calico: configured",
			"note network plug-in portmap: configured",
			"note network plug-in kube-router: configured",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, short(host(t, tt.files).Checks())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLiberal(t *testing.T) {
	for release, want := range map[string]Level{"6.1.0": OK, "6.18.44": OK, "7.0": OK, "6.0.9": Warning,
		"5.15.0-91": Warning, "": Warning} {
		h := host(t, map[string]string{"proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal": "0\n"})
		h.Release = release
		if got := h.sysctls()[0].Level; got != want {
			t.Errorf("kernel %q: %s, want %s", release, got, want)
		}
	}
}

func TestNFTVersion(t *testing.T) {
	for version, want := range map[string]Level{"": Note, "0.9.8": Warning, "1.0.0": Warning, "1.0.1": OK, "1.0.6": OK,
		"1.1.3": OK, "2.0": OK} {
		var c Check
		judgeNFT(version, &c)
		if c.Level == "" {
			c.Level = OK
		}
		if c.Level != want {
			t.Errorf("version %q: %s, want %s", version, c.Level, want)
		}
	}
}

func FuzzPlugins(f *testing.F) {
	f.Add([]byte(`{"type":"calico","plugins":[{"type":"portmap","externalSetMarkChain":"X"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, p := range pluginsOf(text) {
			p.check()
		}
	})
}

// TestRunningReadsLittle: megabytes of arguments, which any pod can give its processes, cost nothing.
func TestRunningReadsLittle(t *testing.T) {
	h := Host{Proc: t.TempDir()}
	for pid, args := range map[string]string{
		"7": "sh\x00" + strings.Repeat("x", 1<<20) + "\x00firewalld\x00",
		"8": "/usr/bin/python3\x00/usr/sbin/ufwd\x00" + strings.Repeat("x", 1<<20),
	} {
		dir := filepath.Join(h.Proc, pid)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "cmdline"), []byte(args),
			0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if h.running("firewalld") {
		t.Error("it reads all arguments of a process")
	}
	if !h.running("ufwd") {
		t.Error("a process with many arguments is not seen")
	}
}

// TestFirewallChecksInKernel: what refuses connections to endpoints is a warning with the remedy, and blocks if no
// Service can work.
func TestFirewallChecksInKernel(t *testing.T) {
	const chain = "table inet %s {\n chain forward {\n type filter hook forward priority 0; policy drop;\n }\n}\n"
	for name, tt := range map[string]struct{ rules, want, remedy string }{
		"none": {"", "", ""},
		"Calico and kube-proxy in nftables mode": {
			"table ip calico { chain filter-FORWARD { type filter hook forward priority 0; }; }\n" +
				"table ip kube-proxy { chain nat-output { type nat hook output priority -100; }; }",
			"warning Calico", `{"spec":{"nftablesMode":"Enabled"}}`},
		"Calico alone": {"table ip calico { chain filter-FORWARD { type filter hook forward priority 0; }; }", "", ""},
		"a table": {fmt.Sprintf(chain, "mine"), "warning rules at forward",
			"nft add rule inet mine forward ct status dnat accept"},
		"firewalld": {fmt.Sprintf(chain, "firewalld"), "blocks firewalld", "StrictForwardPorts=no"},
		"firewalld with a rule that may accept": {strings.Replace(fmt.Sprintf(chain, "firewalld"), "drop;\n",
			"drop;\n ct mark 1 accept\n", 1), "note rules at forward", ""},
	} {
		t.Run(name, func(t *testing.T) {
			lab.New(t)
			lab.Run(t, tt.rules, "nft", "-f", "-")
			inventory, err := legacy.Node{Proc: t.TempDir()}.Inventory(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			checks := FirewallChecks(t.Context(), &inventory, nil, 1<<14)
			if tt.want == "" && len(checks) == 0 {
				return
			}
			if len(checks) != 1 || string(checks[0].Level)+" "+checks[0].About != tt.want ||
				!strings.Contains(checks[0].Do, tt.remedy) {
				t.Errorf("%v", checks)
			}
		})
	}
}
