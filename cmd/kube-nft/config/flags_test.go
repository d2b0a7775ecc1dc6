package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/tracker"
)

// TestFlagsOfKubeProxy takes command lines as tools write them.
func TestFlagsOfKubeProxy(t *testing.T) {
	tests := []struct {
		name, line string
		notices    []string
		check      func(*Config) bool
	}{
		{
			name: "k3s",
			line: `--cluster-cidr=10.42.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s
				--conntrack-tcp-timeout-established=0s --healthz-bind-address=127.0.0.1 --hostname-override=node
				--kubeconfig=/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig --proxy-mode=iptables`,
			notices: []string{"no effect in kube-nft: --proxy-mode iptables"},
			check: func(c *Config) bool {
				return c.Healthz.String() == "127.0.0.1:10256" && c.Conntrack.MaxPerCore == 0 && c.Conntrack.TCPEstablished == 0 &&
					c.Connection.Kubeconfig == "/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig"
			},
		},
		{
			name:  "a gate that holds here",
			line:  `--feature-gates AllowServiceExternalIPs=false`,
			check: func(c *Config) bool { return c.ExternalIPs.String() == "none" },
		},
		{
			name: "our setting says more than the gate",
			line: `--feature-gates AllowServiceExternalIPs=false --external-ips=203.0.113.0/24,2001:db8::/64`,
			notices: []string{
				"the feature gate AllowServiceExternalIPs is false, but --external-ips 203.0.113.0/24,2001:db8::/64 wins",
			},
			check: func(c *Config) bool { return c.ExternalIPs.String() == "203.0.113.0/24,2001:db8::/64" },
		},
		{
			name: "ipvs",
			line: `--proxy-mode ipvs --ipvs-strict-arp --ipvs-scheduler=rr --ipvs-exclude-cidrs= --feature-gates A=true,B=false`,
			notices: []string{
				"no effect in kube-nft: --ipvs-scheduler rr, --ipvs-strict-arp true",
				"--feature-gates A true has no effect in kube-nft: there is no such gate here",
				"--feature-gates B false has no effect in kube-nft: there is no such gate here",
				"no effect in kube-nft: --proxy-mode ipvs",
			},
		},
		{
			name:    "another mode by our name of the flag",
			line:    `--mode=ipvs --takeover=auto`,
			notices: []string{"no effect in kube-nft: --mode ipvs"},
			check:   func(c *Config) bool { return !c.Shadow && c.Takeover },
		},
		{
			name: "shadow",
			line: `--proxy-mode=shadow --takeover=force`,
			check: func(c *Config) bool {
				return c.Shadow && !c.Takeover && c.Healthz.String() == "0.0.0.0:10356" && c.Metrics.String() == "127.0.0.1:10349"
			},
		},
		{
			name: "shadow at ports of its own",
			line: `--mode=shadow --healthz-bind-address=:10256 --metrics-bind-address=127.0.0.1:9000`,
			check: func(c *Config) bool {
				return c.Healthz.String() == "0.0.0.0:10356" && c.Metrics.String() == "127.0.0.1:9000"
			},
		},
		{
			name: "logging",
			line: `--logtostderr=true --alsologtostderr --v=2 --logging-format=text --log-flush-frequency 5s --stderrthreshold=INFO`,
			check: func(c *Config) bool {
				return c.LogLevel.String() == "info" && c.LogFormat == "console"
			},
		},
		{
			name:  "old ports",
			line:  `--healthz-port=0 --metrics-port=9000`,
			check: func(c *Config) bool { return !c.Healthz.IsValid() && c.Metrics.String() == "127.0.0.1:9000" },
		},
		{
			name: "empty values are none",
			line: `--bind-address= --detect-local-mode= --cluster-cidr= --hostname-override= --proxy-mode= --nodeport-addresses=`,
			check: func(c *Config) bool {
				return len(c.NodeAddresses) == 0 && len(c.Pods) == 0 && !c.PodsFromNode && c.NodeName != ""
			},
		},
		{
			name:  "underscores",
			line:  `--proxy_mode=nftables --iptables_min_sync_period=2s --masquerade_all`,
			check: func(c *Config) bool { return c.MasqueradeAll && c.MinSyncPeriod.String() == "2s" },
		},
		{
			name:  "the same twice",
			line:  `--iptables-min-sync-period=2000ms --min-sync-period=2s`,
			check: func(c *Config) bool { return c.MinSyncPeriod.String() == "2s" },
		},
		{
			name: "in vain",
			line: `--config-sync-period=1h --cleanup-ipvs=false --logtostderr=false --log-text-split-stream --machine-id-file=/f`,
			notices: []string{
				"no effect in kube-nft: --machine-id-file /f, --config-sync-period 1h, --log-text-split-stream true, " +
					"--logtostderr false, --cleanup-ipvs false",
			},
		},
		{name: "as it is anyway",
			line: `--config-sync-period=15m --cleanup-ipvs --logtostderr --log-json-split-stream=false --skip-headers=false`},
		{name: "Windows", line: `--enable-dsr=false --source-vip 10.0.0.1`,
			notices: []string{"no effect in kube-nft: --source-vip 10.0.0.1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newReader(t, strings.Fields(tt.line)...)
			for range 2 { // the second time is what a change of the file does
				c, err := r.Read()
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(c.Notices, tt.notices) {
					t.Errorf("notices %q, want %q", c.Notices, tt.notices)
				}
				if tt.check != nil && !tt.check(c) {
					t.Errorf("got %+v", c)
				}
			}
		})
	}
}

// TestLogging: which of the settings for the log holds.
func TestLogging(t *testing.T) {
	const own = "\n---\napiVersion: kube-nft.github.io/v1alpha1\nkind: KubeNFTConfiguration\nlogLevel: warn\nlogFormat: " +
		"console\n"
	tests := []struct {
		name, file, line string
		level, format    string
	}{
		{name: "default", level: "info", format: "auto"},
		{name: "verbosity", line: "-v 4", level: "debug", format: "auto"},
		{name: "less verbosity", line: "-v 3", level: "info", format: "auto"},
		{name: "both flags", line: "-v 4 --log-level error --log-format json --logging-format text", level: "error",
			format: "json"},
		{name: "file", file: "logging: {verbosity: 5, format: text}", level: "debug", format: "console"},
		{name: "less verbosity over our field", file: own, line: "--v=2", level: "info", format: "console"},
		{name: "flag over file", file: "logging: {verbosity: 5, format: text}",
			line: "--log-level info --logging-format json", level: "info", format: "json"},
		{name: "our field over theirs", file: "logging: {verbosity: 5, format: json}" + own, level: "warn",
			format: "console"},
		{name: "their flag over our field", file: own, line: "--v 4 --logging-format json", level: "debug", format: "json"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := mustRead(t, append(strings.Fields(tt.line), "--config", proxyFile(t, tt.file))...)
			if c.LogLevel.String() != tt.level || c.LogFormat != tt.format {
				t.Errorf("got %s, %s; want %s, %s", c.LogLevel, c.LogFormat, tt.level, tt.format)
			}
		})
	}
}

// TestSource: a flag wins over the file also where two settings exclude each other.
func TestSource(t *testing.T) {
	server := proxyFile(t, "clientConnection: {kubeconfig: /k}")
	if c := mustRead(t, "--config", server, "--manifests", "/m"); c.Manifests != "/m" || c.Connection.Kubeconfig != "" {
		t.Errorf("--manifests over the file's kubeconfig: got %q, %q", c.Manifests, c.Connection.Kubeconfig)
	}
	files := writeFile(t, "apiVersion: kube-nft.github.io/v1alpha1\nkind: KubeNFTConfiguration\nmanifests: /m\n")
	if c := mustRead(t, "--config", files, "--master", "https://h"); c.Manifests != "" ||
		c.Connection.Master != "https://h" {
		t.Errorf("--master over the file's manifests: got %q, %q", c.Manifests, c.Connection.Master)
	}
}

// TestLocalhostNodePorts: who serves them, the ruleset or the daemon, follows from two settings and a gate.
func TestLocalhostNodePorts(t *testing.T) {
	const gate = "the feature gate KubeProxyNFTablesLocalhostNodePorts is false: the %s loopback addresses in " +
		"--nodeport-addresses have no effect"
	both, four, six := []tracker.Family{tracker.IPv4, tracker.IPv6}, []tracker.Family{tracker.IPv4},
		[]tracker.Family{tracker.IPv6}
	for line, want := range map[string]struct {
		proxies []tracker.Family
		notices []string
	}{
		"":                                       {},
		"--localhost-nodeports":                  {proxies: six},
		"--nodeport-addresses all":               {},
		"--nodeport-addresses 0.0.0.0/0":         {},
		"--nodeport-addresses 64.0.0.0/1":        {},
		"--nodeport-addresses 127.0.0.0/8":       {proxies: four},
		"--nodeport-addresses ::1/128":           {proxies: six},
		"--nodeport-addresses primary,localhost": {proxies: both},
		"--nodeport-addresses primary,localhost --localhost-nodeports":                         {proxies: six},
		"--nodeport-addresses localhost --feature-gates KubeProxyNFTablesLocalhostNodePorts=1": {proxies: both},
		"--nodeport-addresses localhost --feature-gates KubeProxyNFTablesLocalhostNodePorts=false": {
			notices: []string{fmt.Sprintf(gate, "IPv4"), fmt.Sprintf(gate, "IPv6")},
		},
	} {
		c := mustRead(t, strings.Fields(line)...)
		if want := strings.Contains(line, "--localhost-nodeports"); c.LocalhostNodePorts != want {
			t.Errorf("%q: %v, want %v", line, c.LocalhostNodePorts, want)
		}
		if !slices.Equal(c.LocalhostProxies, want.proxies) || !slices.Equal(c.Notices, want.notices) {
			t.Errorf("%q: proxies %v, notices %q, want %v", line, c.LocalhostProxies, c.Notices, want)
		}
	}
}

// TestLocalhostNodePortsOfKubeProxy: the mode iptables serves them by default, and a file that
// says so gets one notice.
func TestLocalhostNodePortsOfKubeProxy(t *testing.T) {
	for _, tt := range []struct {
		fields string
		flags  []string
		notice bool
	}{
		{fields: "iptables: {localhostNodePorts: true}", notice: true},
		{fields: "mode: nftables\niptables: {localhostNodePorts: true}", notice: true},
		{fields: "iptables: {localhostNodePorts: true}", flags: []string{"--localhost-nodeports"}},
		{fields: "iptables: {localhostNodePorts: false}"},
		{fields: "iptables: {localhostNodePorts: null}"},
		{fields: "nodePortAddresses: [primary, localhost]\niptables: {localhostNodePorts: true}"},
		{fields: "iptables: {localhostNodePorts: true}\n---\napiVersion: " + APIVersion + "\nkind: " + ownKind +
			"\nlocalhostNodePorts: true"},
	} {
		file := proxyFile(t, tt.fields)
		c := mustRead(t, append([]string{"--config", file}, tt.flags...)...)
		var want []string
		if tt.notice {
			want = []string{
				file + ": iptables.localhostNodePorts true: node ports are not served at localhost without --localhost-nodeports",
			}
		}
		if !slices.Equal(c.Notices, want) {
			t.Errorf("%q %q: notices %q, want %q", tt.fields, tt.flags, c.Notices, want)
		}
	}
}

// TestLocalhostNodePortsByFlag: kube-proxy's flag, when given, means ours.
func TestLocalhostNodePortsByFlag(t *testing.T) {
	for line, want := range map[string]bool{
		"--iptables-localhost-nodeports":                              true,
		"--iptables-localhost-nodeports=true":                         true,
		"--iptables-localhost-nodeports=false":                        false,
		"--iptables-localhost-nodeports --localhost-nodeports":        true,
		"--iptables-localhost-nodeports --nodeport-addresses primary": true,
	} {
		if c := mustRead(t, strings.Fields(line)...); c.LocalhostNodePorts != want || len(c.Notices) > 0 {
			t.Errorf("%q: %v, want %v; notices %q", line, c.LocalhostNodePorts, want, c.Notices)
		}
	}
}

// TestUnlimitedRequests: a negative rate is no limit, as in kube-proxy.
func TestUnlimitedRequests(t *testing.T) {
	for _, c := range []*Config{mustRead(t, "--kube-api-qps=-1"),
		mustRead(t, "--config", proxyFile(t, "clientConnection: {qps: -1}"))} {
		if c.Connection.QPS != -1 || len(c.Notices) > 0 {
			t.Errorf("QPS %v, notices %q", c.Connection.QPS, c.Notices)
		}
		checkRoundTrip(t, c)
	}
}

// TestTakeover: another proxy's rules are left alone.
func TestTakeover(t *testing.T) {
	if !mustRead(t).Takeover {
		t.Error("Takeover is off by default")
	}
	if mustRead(t, "--service-proxy-name", "ours").Takeover {
		t.Error("Takeover is on beside another proxy")
	}
}
