package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// newReader returns a Reader after it parsed args.
func newReader(t testing.TB, args ...string) *Reader {
	t.Helper()
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.SetNormalizeFunc(NormalizeName)
	r := NewReader(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return r
}

func mustRead(t testing.TB, args ...string) *Config {
	t.Helper()
	c, err := newReader(t, args...).Read()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// writeFile writes a file of the test and returns its path.
func writeFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// proxyFile writes a KubeProxyConfiguration and returns its path.
func proxyFile(t testing.TB, fields string) string {
	t.Helper()
	return writeFile(t, "apiVersion: "+proxyVersion+"\nkind: "+proxyKind+"\n"+fields)
}

func yamlOf(t testing.TB, c *Config) string {
	t.Helper()
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkRoundTrip holds what YAML prints to giving the same settings.
func checkRoundTrip(t testing.TB, c *Config) {
	t.Helper()
	text := yamlOf(t, c)
	again := mustRead(t, "--config", writeFile(t, text))
	if len(again.Notices) > 0 {
		t.Errorf("reading back what was printed gave notices: %q", again.Notices)
	}
	if diff := cmp.Diff(text, yamlOf(t, again)); diff != "" {
		t.Errorf("after reading back (-printed +printed again):\n%s", diff)
	}
	first, second := *c, *again
	for _, c := range []*Config{&first, &second} {
		c.File, c.Notices, c.Overrides, c.effective = "", nil, nil, document{}
	}
	if !reflect.DeepEqual(first, second) {
		t.Errorf("after reading back: %+v, want %+v", second, first)
	}
}

func TestDefaults(t *testing.T) {
	const want = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  burst: 10
  contentType: application/vnd.kubernetes.protobuf
  kubeconfig: ""
  qps: 5
clusterCIDR: ""
configSyncPeriod: 15m0s
conntrack:
  maxPerCore: 32768
  min: 131072
  tcpBeLiberal: false
  tcpCloseWaitTimeout: 1h0m0s
  tcpEstablishedTimeout: 24h0m0s
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ClusterCIDR
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
hostnameOverride: ""
kind: KubeProxyConfiguration
metricsBindAddress: 127.0.0.1:10249
mode: nftables
nftables:
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 1ms
  syncPeriod: 30s
nodePortAddresses:
- primary
oomScoreAdj: -999
---
affinitySize: 131072
apiVersion: kube-nft.github.io/v1alpha1
connectionsOfDeparted: keep
externalIPs:
- all
hostProc: /proc
kind: KubeNFTConfiguration
localhostNodePorts: false
logFormat: auto
logLevel: info
namespaceQuota: 1000000
tableOwnership: never
takeover: auto
takeoverDrainTimeout: 24h0m0s
`
	c := mustRead(t)
	if diff := cmp.Diff(want, yamlOf(t, c)); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	checkRoundTrip(t, c)
}

// aSecond is what is said of kube-proxy's default.
const aSecond = ".minSyncPeriod 1s: changes wait for up to a second, as with kube-proxy, whose default it is; remove " +
	"the field for 1ms, or set minSyncPeriod in KubeNFTConfiguration"

// TestFilesOfKubeProxy reads files as tools write them.
func TestFilesOfKubeProxy(t *testing.T) {
	kubeadm := strings.NewReplacer(
		`kubeconfig: ""`, "kubeconfig: /var/lib/kube-proxy/kubeconfig.conf",
		`clusterCIDR: ""`, "clusterCIDR: 10.244.0.0/16",
	)
	tests := []struct {
		file     string
		settings func(defaults string) string
		notices  []string
	}{
		{file: "kubeadm.yaml", settings: kubeadm.Replace},
		{file: "v1.10.yaml", settings: kubeadm.Replace},
		{
			file: "defaulted.yaml",
			settings: strings.NewReplacer("minSyncPeriod: 1ms", "minSyncPeriod: 1s", "logFormat: auto", "logFormat: console",
				"namespaceQ", "minSyncPeriod: 1s\nnamespaceQ").Replace,
			notices: []string{"testdata/defaulted.yaml: nftables" + aSecond,
				"testdata/defaulted.yaml: iptables.localhostNodePorts true: node ports are not served at localhost without " +
					"--localhost-nodeports"},
		},
		{
			file: "ipvs.yaml",
			settings: func(defaults string) string {
				return strings.NewReplacer(
					"10.244.0.0/16", "10.244.0.0/16,fd00:10:244::/56",
					"bindAddress: 0.0.0.0", "bindAddress: '::'",
					"0.0.0.0:10256", "'[::]:10256'", "127.0.0.1:10249", "'[::1]:10249'",
					"maxPerCore: 32768", "maxPerCore: 0",
					"masqueradeAll: false", "masqueradeAll: true", "masqueradeBit: 14", "masqueradeBit: 15",
					"minSyncPeriod: 1ms", "minSyncPeriod: 1s", "namespaceQ", "minSyncPeriod: 1s\nnamespaceQ",
				).Replace(kubeadm.Replace(defaults))
			},
			notices: []string{"testdata/ipvs.yaml: no effect in kube-nft: ipvs.scheduler rr, ipvs.strictARP true, mode ipvs",
				"testdata/ipvs.yaml: iptables" + aSecond},
		},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			c := mustRead(t, "--config", "testdata/"+tt.file)
			if diff := cmp.Diff(tt.settings(yamlOf(t, mustRead(t))), yamlOf(t, c)); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.notices, c.Notices); diff != "" {
				t.Errorf("notices (-want +got):\n%s", diff)
			}
			checkRoundTrip(t, c)
		})
	}
}

func TestFlagsWinOverTheFile(t *testing.T) {
	file := proxyFile(t, `
clusterCIDR: 10.0.0.0/16
hostnameOverride: from-file
nodePortAddresses: [192.168.0.0/16]
bindAddress: 10.0.0.1
healthzBindAddress: 10.0.0.1:1
oomScoreAdj: 5
nftables: {masqueradeAll: true, masqueradeBit: 3, minSyncPeriod: 5s}
conntrack: {maxPerCore: 7}
logging: {verbosity: 9, format: text}
---
apiVersion: kube-nft.github.io/v1alpha1
kind: KubeNFTConfiguration
logLevel: error
takeover: never
serviceCIDRs: [10.96.0.0/12]
`)
	c := mustRead(t, "--config", file, "--cluster-cidr", "10.1.0.0/16", "--hostname-override", " Flag ",
		"--nodeport-addresses", "primary", "--bind-address", "0.0.0.0", "--healthz-bind-address", "", "--oom-score-adj", "0",
		"--masquerade-all=false", "--masquerade-bit", "14", "--min-sync-period", "0", "--conntrack-max-per-core", "0",
		"--v", "4", "--logging-format", "json", "--takeover", "auto", "--service-cidr", "10.97.0.0/16,fd00::/108")
	want := mustRead(t, "--cluster-cidr", "10.1.0.0/16", "--hostname-override", "flag", "--healthz-bind-address", "",
		"--oom-score-adj", "0", "--min-sync-period", "0", "--conntrack-max-per-core", "0", "--log-level", "debug",
		"--log-format", "json",
		"--service-cidr", "10.97.0.0/16,fd00::/108")
	if got, want := yamlOf(t, c), strings.Replace(yamlOf(t, want), "hostnameOverride: flag", "hostnameOverride: ' Flag '",
		1); got != want {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
	}
	if c.NodeName != "flag" {
		t.Errorf("NodeName = %q, want flag", c.NodeName)
	}
	overrides := []Override{
		{"--hostname-override", " Flag ", "hostnameOverride", "from-file"},
		{"--bind-address", "0.0.0.0", "bindAddress", "10.0.0.1"},
		{"--cluster-cidr", "10.1.0.0/16", "clusterCIDR", "10.0.0.0/16"},
		{"--service-cidr", "10.97.0.0/16,fd00::/108", "serviceCIDRs", "10.96.0.0/12"},
		{"--nodeport-addresses", "primary", "nodePortAddresses", "192.168.0.0/16"},
		{"--masquerade-all", "false", "nftables.masqueradeAll", "true"},
		{"--masquerade-bit", "14", "nftables.masqueradeBit", "3"},
		{"--min-sync-period", "0s", "nftables.minSyncPeriod", "5s"},
		{"--takeover", "auto", "takeover", "never"},
		{"--oom-score-adj", "0", "oomScoreAdj", "5"},
		{"--healthz-bind-address", "", "healthzBindAddress", "10.0.0.1:1"},
		{"--conntrack-max-per-core", "0", "conntrack.maxPerCore", "7"},
		{"--v", "4", "logging.verbosity", "9"},
		{"--logging-format", "json", "logging.format", "text"},
		{"--v", "4", "logLevel", "error"},
	}
	if diff := cmp.Diff(overrides, c.Overrides); diff != "" {
		t.Errorf("overrides (-want +got):\n%s", diff)
	}
}

// TestSections: which of the two sections holds.
func TestSections(t *testing.T) {
	const iptables = "iptables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 1m, minSyncPeriod: 2s}\n"
	tests := []struct {
		name, fields string
		args         []string
		all          bool
		bit          uint8
		sync, min    time.Duration
		notices      string
	}{
		{name: "neither", bit: 14, sync: 30 * time.Second, min: time.Millisecond},
		{name: "iptables alone", fields: iptables, all: true, bit: 3, sync: time.Minute, min: 2 * time.Second},
		{name: "nftables wins", fields: iptables + "nftables: {masqueradeBit: 0, minSyncPeriod: 3s}", all: true, bit: 0,
			sync: time.Minute, min: 3 * time.Second},
		{name: "in mode nftables, iptables has no effect", fields: iptables + "mode: nftables", bit: 14,
			sync: 30 * time.Second, min: time.Millisecond,
			notices: "no effect in kube-nft: iptables.masqueradeAll true, iptables.masqueradeBit 3, iptables.minSyncPeriod " +
				"2s, iptables.syncPeriod 1m"},
		{name: "flags of the other mode count", args: []string{"--iptables-sync-period", "2m",
			"--iptables-min-sync-period=4s", "--iptables-masquerade-bit=5"},
			fields: "nftables: {masqueradeBit: 6, syncPeriod: 9m}", bit: 5, sync: 2 * time.Minute, min: 4 * time.Second},
		{name: "an own document can take the pause away",
			fields: "nftables: {minSyncPeriod: 1s}\n---\napiVersion: kube-nft.github.io/v1alpha1\nkind: " +
				"KubeNFTConfiguration\nminSyncPeriod: 0s",
			bit: 14, sync: 30 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := proxyFile(t, tt.fields)
			c := mustRead(t, append(tt.args, "--config", file)...)
			if c.MasqueradeAll != tt.all || c.MasqueradeBit != tt.bit || c.SyncPeriod != tt.sync || c.MinSyncPeriod != tt.min {
				t.Errorf("got %v, %d, %s, %s; want %v, %d, %s, %s", c.MasqueradeAll, c.MasqueradeBit, c.SyncPeriod, c.MinSyncPeriod,
					tt.all, tt.bit, tt.sync, tt.min)
			}
			if got := strings.ReplaceAll(strings.Join(c.Notices, "\n"), file+": ", ""); got != tt.notices {
				t.Errorf("notices %q, want %q", got, tt.notices)
			}
			checkRoundTrip(t, c)
		})
	}
}

// TestTakeoverDefault: files seldom hold a whole cluster, so with them a takeover has to be asked for.
func TestTakeoverDefault(t *testing.T) {
	for line, want := range map[string][2]bool{
		"":                                {true, false},
		"--takeover force":                {true, true},
		"--takeover never":                {false, false},
		"--manifests /m":                  {false, false},
		"--manifests /m --takeover auto":  {true, false},
		"--manifests /m --takeover force": {true, true},
		"--service-proxy-name ours":       {false, false},
		"--kubeconfig /f --takeover auto": {true, false},
	} {
		c := mustRead(t, strings.Fields(line)...)
		if got := [2]bool{c.Takeover, c.ForceTakeover}; got != want {
			t.Errorf("%q: takes over, by force: %v, want %v", line, got, want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for _, args := range [][]string{
		{"--kubeconfig", "/f", "--hostname-override", "N1", "--cluster-cidr", "10.244.0.0/16", "--masquerade-all",
			"--nodeport-addresses", "10.0.0.0/8,::/0", "--min-sync-period", "250ms"},
		{"--manifests", "/m", "--master", "", "--service-cidr", "10.96.0.0/12", "--service-cidr", "fd00::/108"},
		{"--master", "https://10.0.0.1:6443", "--kube-api-qps", "0", "--kube-api-burst", "0", "--kube-api-content-type", ""},
		{"--service-proxy-name", "kube-nft", "--localhost-nodeports", "--connection-counters", "--table-ownership", "never"},
		{"--takeover", "never", "--affinity-size", "1", "--log-level", "warn", "--log-format", "console"},
		{"--healthz-bind-address", "", "--metrics-bind-address", ""},
		{"--healthz-bind-address", "10.0.0.1", "--metrics-bind-address", ":9", "--profiling", "--bind-address-hard-fail",
			"--bind-address", "fd00::1"},
		{"--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "cbr0", "--min-sync-period", "0"},
		{"--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "veth", "-v", "6", "--logging-format",
			"text"},
		{"--nodeport-addresses", "primary,localhost", "--localhost-nodeports"},
		{"--external-ips", "203.0.113.0/24,2001:db8::/64"},
		{"--feature-gates", "AllowServiceExternalIPs=false"},
		{"--detect-local-mode", "NodeCIDR", "--oom-score-adj", "1000", "--sync-period", "1h"},
		{"--conntrack-max-per-core", "0", "--conntrack-min", "0", "--conntrack-tcp-timeout-established", "0",
			"--conntrack-tcp-timeout-close-wait", "0", "--conntrack-tcp-be-liberal", "--conntrack-udp-timeout", "10s",
			"--conntrack-udp-timeout-stream", "20s"},
	} {
		t.Run(strings.Join(args[:2], " "), func(t *testing.T) { checkRoundTrip(t, mustRead(t, args...)) })
	}
}

func TestExternalIPs(t *testing.T) {
	const own = "\n---\napiVersion: kube-nft.github.io/v1alpha1\nkind: KubeNFTConfiguration\n"
	for fields, want := range map[string]string{
		"": "all",
		"featureGates: {AllowServiceExternalIPs: false}": "none",
		"featureGates: {AllowServiceExternalIPs: true}":  "all",
		own + "externalIPs: [none]":                      "none",
		"featureGates: {AllowServiceExternalIPs: false}" + own +
			"externalIPs: [203.0.113.0/25, 203.0.113.128/25]": "203.0.113.0/24",
	} {
		c := mustRead(t, "--config", proxyFile(t, fields))
		if got := c.ExternalIPs.String(); got != want || c.Tracker().ExternalIPs.String() != want {
			t.Errorf("%q: %s, want %s", fields, got, want)
		}
		checkRoundTrip(t, c)
	}
	c := mustRead(t, "--config", proxyFile(t, "featureGates: {AllowServiceExternalIPs: false}"),
		"--feature-gates=AllowServiceExternalIPs=true")
	if got := c.ExternalIPs.String(); got != "all" {
		t.Errorf("a flag over the file: %s", got)
	}
}

// TestExternalIPsFollowRelease holds the default to that of the kube-proxy in go.mod, which is to
// change with 1.40.
func TestExternalIPsFollowRelease(t *testing.T) {
	text, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var minor int
	_, after, found := strings.Cut(string(text), "k8s.io/kube-proxy v0.")
	if _, err := fmt.Sscan(strings.SplitN(after, ".", 2)[0], &minor); err != nil || !found {
		t.Fatalf("no k8s.io/kube-proxy in go.mod: %v", err)
	}
	want := "all"
	if minor >= 40 {
		want = "none"
	}
	if defaultExternalIPs != want {
		t.Errorf("the default is %s, of kube-proxy 1.%d it is %s", defaultExternalIPs, minor, want)
	}
	for _, s := range settings {
		if named := fmt.Sprintf("kube-proxy 1.%d;", minor); s.flag == "external-ips" && !strings.Contains(s.usage, named) {
			t.Errorf("--external-ips does not say that its default is that of %s", named)
		}
	}
}

func TestWithoutNode(t *testing.T) {
	const remedy = "; create a Node object of this name, or pass another --hostname-override"
	for line, want := range map[string]string{
		"": "node ports keep the primary addresses that the tables have already, " +
			"and /healthz tells load balancers that this node is not eligible",
		"--nodeport-addresses all": "/healthz tells load balancers that this node is not eligible",
		"--bind-address 192.0.2.1": "/healthz tells load balancers that this node is not eligible",
		"--manifests m": "node ports keep the primary addresses that the tables have already, " +
			"and the zone of this node is not known",
		"--manifests m --nodeport-addresses 192.168.0.0/16": "the zone of this node is not known",
	} {
		if got := mustRead(t, strings.Fields(line)...).withoutNode(); got != want+remedy {
			t.Errorf("%q: %s", line, got)
		}
	}
}
