package config

import (
	"errors"
	"strings"
	"testing"
)

// checkError holds the text of an error to want, in which FILE stands for the file.
func checkError(t *testing.T, err error, file, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", want)
	}
	if got := strings.ReplaceAll(err.Error(), file, "FILE"); got != want {
		t.Errorf("error\n%s\nwant\n%s", got, want)
	}
	var setting *Error
	if !errors.As(err, &setting) {
		t.Errorf("%v is a %T, want an *Error", err, err)
	}
}

func TestErrorsOfFlags(t *testing.T) {
	tests := []struct{ line, want string }{
		{"--proxy-mode nft", "--proxy-mode nft: expected nftables or shadow"},
		{"--mode nft", "--mode nft: expected nftables or shadow"},
		{"--mode shadow --service-proxy-name x",
			"--mode shadow: expected nftables, as kube-proxy does not serve the Services of --service-proxy-name"},
		{"--mode shadow --proxy-mode nftables",
			"--proxy-mode nftables: it is another name of --mode, which is given as shadow; give one of them"},
		{"--manifests /m --kubeconfig /k",
			"--manifests /m: it replaces the API server, so it cannot be combined with a kubeconfig or a master"},
		{"--manifests /m --master https://h",
			"--manifests /m: it replaces the API server, so it cannot be combined with a kubeconfig or a master"},
		{"--iptables-localhost-nodeports=x", "--iptables-localhost-nodeports x: expected true or false"},
		{"--kube-api-burst -1", "--kube-api-burst -1: expected a number that is not negative"},
		{"--service-proxy-name a/b",
			"--service-proxy-name a/b: expected the value of a label: at most 63 letters, digits, -, _ and ., with a letter " +
				"or digit at both ends"},
		{"--service-cidr 10.96.0.0/12,x", "--service-cidr x: expected a CIDR such as 10.96.0.0/12"},
		{"--hostname-override %20", `--hostname-override " ": expected the name of a node`},
		{"--bind-address here", "--bind-address here: expected an IP address"},
		{"--detect-local-mode Pods",
			"--detect-local-mode Pods: expected ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"},
		{"--detect-local-mode BridgeInterface",
			"--detect-local-mode BridgeInterface: it needs --pod-bridge-interface or, in a file, detectLocal.bridgeInterface"},
		{"--detect-local-mode InterfaceNamePrefix",
			"--detect-local-mode InterfaceNamePrefix: it needs --pod-interface-name-prefix or, in a file, " +
				"detectLocal.interfaceNamePrefix"},
		{"--detect-local-mode BridgeInterface --pod-bridge-interface a*",
			"--pod-bridge-interface a*: expected the name of a network interface, at most 15 bytes"},
		{"--detect-local-mode InterfaceNamePrefix --pod-interface-name-prefix 0123456789abcdef",
			"--pod-interface-name-prefix 0123456789abcdef: expected the name of a network interface, at most 15 bytes"},
		{"--cluster-cidr 10.0.0.0",
			"--cluster-cidr 10.0.0.0: expected a CIDR such as 10.244.0.0/16, or one of each family with a comma"},
		{"--cluster-cidr 10.0.0.0/8,",
			"--cluster-cidr 10.0.0.0/8,: expected a CIDR such as 10.244.0.0/16, or one of each family with a comma"},
		{"--cluster-cidr 10.0.0.0/8,11.0.0.0/8",
			"--cluster-cidr 10.0.0.0/8,11.0.0.0/8: expected no more than one CIDR of a family"},
		{"--cluster-cidr fd00::/64,10.0.0.0/8,fd01::/64",
			"--cluster-cidr fd00::/64,10.0.0.0/8,fd01::/64: expected no more than one CIDR of a family"},
		{"--nodeport-addresses 10.0.0.1",
			`--nodeport-addresses: "10.0.0.1" is neither a CIDR such as 192.168.0.0/24 nor one of the keywords primary, localhost and all`},
		{"--masquerade-bit 32", "--masquerade-bit 32: expected a bit of the packet mark, 0 to 31"},
		{"--masquerade-bit -1", "--masquerade-bit -1: expected a bit of the packet mark, 0 to 31"},
		{"--affinity-size 0", "--affinity-size 0: expected at least 1 client"},
		{"--min-sync-period -1s", "--min-sync-period -1s: expected a duration that is not negative"},
		{"--sync-period 0", "--sync-period 0s: expected more than 0s"},
		{"--min-sync-period 1m", "--min-sync-period 1m0s: expected no more than 30s, the value of --sync-period"},
		{"--takeover yes", "--takeover yes: expected auto, force or never"},
		{"--connections-of-departed cut", "--connections-of-departed cut: expected keep or reset"},
		{"--table-ownership yes", "--table-ownership yes: expected auto or never"},
		{"--takeover auto --service-proxy-name ours",
			"--takeover auto: expected never, as --service-proxy-name leaves the other Services to another proxy"},
		{"--healthz-bind-address localhost:80",
			"--healthz-bind-address localhost:80: expected an IP address and a port such as 0.0.0.0:10256"},
		{"--healthz-bind-address 0.0.0.0:0",
			"--healthz-bind-address 0.0.0.0:0: expected an IP address and a port such as 0.0.0.0:10256"},
		{"--metrics-bind-address :70000 --bind-address ::",
			"--metrics-bind-address :70000: expected an IP address and a port such as [::1]:10249"},
		{"--metrics-bind-address :10256",
			"--metrics-bind-address 127.0.0.1:10256: expected another port than that of --healthz-bind-address, 0.0.0.0:10256"},
		{"--profiling --metrics-bind-address=", "--profiling true: it needs an address in --metrics-bind-address"},
		{"--healthz-port x", "--healthz-port x: expected a port, or 0 for no server"},
		{"--conntrack-max-per-core -1", "--conntrack-max-per-core -1: expected a number that is not negative"},
		{"--conntrack-min -1", "--conntrack-min -1: expected a number that is not negative"},
		{"--conntrack-tcp-timeout-established -1s",
			"--conntrack-tcp-timeout-established -1s: expected a duration that is not negative"},
		{"--conntrack-tcp-timeout-close-wait -1s",
			"--conntrack-tcp-timeout-close-wait -1s: expected a duration that is not negative"},
		{"--conntrack-udp-timeout -1s", "--conntrack-udp-timeout -1s: expected a duration that is not negative"},
		{"--conntrack-udp-timeout-stream -1s",
			"--conntrack-udp-timeout-stream -1s: expected a duration that is not negative"},
		{"--oom-score-adj -1001", "--oom-score-adj -1001: expected -1000 to 1000"},
		{"--log-level fatal", "--log-level fatal: expected debug, info, warn or error"},
		{"--log-level loud", "--log-level loud: expected debug, info, warn or error"},
		{"--log-format xml", "--log-format xml: expected auto, json or console"},
		{"--logging-format=", `--logging-format "": expected text or json`},
		{"--logging-format xml", "--logging-format xml: expected text or json"},
		{"--iptables-sync-period x", "--iptables-sync-period x: expected a duration such as 30s"},
		{"--iptables-masquerade-bit x", "--iptables-masquerade-bit x: expected a whole number"},
		{"--iptables-sync-period 1m --sync-period 2m",
			"--iptables-sync-period 1m: it is another name of --sync-period, which is given as 2m0s; give one of them"},
		{"--healthz-port 80 --healthz-bind-address 0.0.0.0:80",
			"--healthz-port 80: it is another name of --healthz-bind-address, which is given as 0.0.0.0:80; give one of them"},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			args := strings.Fields(tt.line)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "%20", " ")
			}
			_, err := newReader(t, args...).Read()
			checkError(t, err, "FILE", tt.want)
		})
	}
}

func TestErrorsOfFields(t *testing.T) {
	const proxy, own = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n",
		"apiVersion: kube-nft.github.io/v1alpha1\nkind: KubeNFTConfiguration\n"
	tests := []struct {
		name, text string
		args       []string
		want       string
	}{
		{name: "nothing", want: "FILE: it has no content; expected a document of kind KubeProxyConfiguration"},
		{name: "comments", text: "# none\n---\n",
			want: "FILE: it has no content; expected a document of kind KubeProxyConfiguration"},
		{name: "no kind", text: "mode: nftables\n",
			want: `FILE: it has kind "" of apiVersion ""; expected KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1 or KubeNFTConfiguration of kube-nft.github.io/v1alpha1`},
		{name: "a list", text: "- 1\n",
			want: `FILE: it has kind "" of apiVersion ""; expected KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1 or KubeNFTConfiguration of kube-nft.github.io/v1alpha1`},
		{name: "a ConfigMap", text: "apiVersion: v1\nkind: ConfigMap\n",
			want: `FILE: it has kind "ConfigMap" of apiVersion "v1"; expected KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1 or KubeNFTConfiguration of kube-nft.github.io/v1alpha1`},
		{name: "twice", text: proxy + "---\n" + proxy,
			want: "FILE: it has two documents of kind KubeProxyConfiguration; merge them"},
		{name: "not YAML", text: proxy + "mode: [\n", want: "FILE: yaml: line 3: did not find expected node content"},
		{name: "long value", text: proxy + "oomScoreAdj: " + strings.Repeat("é", 150) + "\n",
			want: "FILE: oomScoreAdj " + strings.Repeat("é", 101) + "…: expected a whole number from -2147483648 to 2147483647"},
		{name: "not a duration", text: proxy + "iptables: {masqueradeAll: false, syncPeriod: 1 hour}\n",
			want: "FILE: iptables.syncPeriod 1 hour: expected a duration such as 30s"},
		{name: "a duration without unit", text: proxy + "nftables: {minSyncPeriod: 1}\n",
			want: "FILE: nftables.minSyncPeriod 1: expected a duration such as 30s"},
		{name: "not a duration either", text: proxy + "conntrack: {tcpCloseWaitTimeout: true}\n",
			want: "FILE: conntrack.tcpCloseWaitTimeout true: expected a duration such as 30s"},
		{name: "not a number", text: proxy + "oomScoreAdj: low\n",
			want: "FILE: oomScoreAdj low: expected a whole number from -2147483648 to 2147483647"},
		{name: "too large", text: proxy + "conntrack: {min: 3000000000}\n",
			want: "FILE: conntrack.min 3000000000: expected a whole number from -2147483648 to 2147483647"},
		{name: "negative", text: own + "affinitySize: -1\n",
			want: "FILE: affinitySize -1: expected a whole number from 0 to 4294967295"},
		{name: "not a fraction", text: proxy + "clientConnection: {qps: fast}\n",
			want: "FILE: clientConnection.qps fast: expected a number"},
		{name: "not a switch", text: proxy + "enableProfiling: 1\n", want: "FILE: enableProfiling 1: expected true or false"},
		{name: "not a text", text: proxy + "clusterCIDR: [10.0.0.0/8]\n",
			want: `FILE: clusterCIDR ["10.0.0.0/8"]: expected a string`},
		{name: "not a list", text: proxy + "nodePortAddresses: primary\n",
			want: "FILE: nodePortAddresses primary: expected a list"},
		{name: "not a section", text: proxy + "nftables: on\n", want: "FILE: nftables true: expected an object"},
		{name: "a section", text: proxy + "nodePortAddresses: {primary: true}\n",
			want: "FILE: nodePortAddresses true: expected a list"},
		{name: "external IPs",
			text: proxy +
				"---\napiVersion: kube-nft.github.io/v1alpha1\nkind: KubeNFTConfiguration\nexternalIPs: [none, 10.0.0.0/8]\n",
			want: `FILE: externalIPs: "none" is not a CIDR; expected CIDRs such as 203.0.113.0/24, or a single all or none`},
		{name: "gates", text: proxy + "featureGates: A=true\n", want: "FILE: featureGates A=true: expected an object"},
		{name: "gate", text: proxy + "featureGates: {A: 1}\n", want: "FILE: featureGates 1: expected true or false"},

		{name: "mode", text: proxy + "mode: nft\n", want: "FILE: mode nft: expected nftables or shadow"},
		{name: "iptables section", text: proxy + "iptables: {masqueradeBit: 32}\n",
			want: "FILE: iptables.masqueradeBit 32: expected a bit of the packet mark, 0 to 31"},
		{name: "nftables section", text: proxy + "nftables: {masqueradeBit: -1}\n",
			want: "FILE: nftables.masqueradeBit -1: expected a bit of the packet mark, 0 to 31"},
		{name: "periods", text: proxy + "iptables: {syncPeriod: 10s}\nnftables: {minSyncPeriod: 11s}\n",
			want: "FILE: nftables.minSyncPeriod 11s: expected no more than 10s, the value of FILE: iptables.syncPeriod"},
		{name: "period of flag and file", text: proxy + "nftables: {minSyncPeriod: 11s}\n",
			args: []string{"--sync-period", "5s"},
			want: "FILE: nftables.minSyncPeriod 11s: expected no more than 5s, the value of --sync-period"},
		{name: "two CIDRs", text: proxy + "clusterCIDR: 10.0.0.0/8,11.0.0.0/8\n",
			want: "FILE: clusterCIDR 10.0.0.0/8,11.0.0.0/8: expected no more than one CIDR of a family"},
		{name: "bridge", text: proxy + "detectLocalMode: BridgeInterface\n",
			want: "FILE: detectLocalMode BridgeInterface: it needs --pod-bridge-interface or, in a file, " +
				"detectLocal.bridgeInterface"},
		{name: "long bridge",
			text: proxy + "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: 0123456789abcdef}\n",
			want: "FILE: detectLocal.bridgeInterface 0123456789abcdef: expected the name of a network interface, at most 15 " +
				"bytes"},
		{name: "node ports", text: proxy + "nodePortAddresses: [primary, somewhere]\n",
			want: `FILE: nodePortAddresses: "somewhere" is neither a CIDR such as 192.168.0.0/24 nor one of the keywords primary, localhost and all`},
		{name: "servers", text: proxy + "metricsBindAddress: 0.0.0.0:10256\n",
			want: "FILE: metricsBindAddress 0.0.0.0:10256: expected another port than that of --healthz-bind-address, " +
				"0.0.0.0:10256"},
		{name: "logging", text: proxy + "logging: {format: xml}\n", want: "FILE: logging.format xml: expected text or json"},
		{name: "verbosity", text: proxy + "logging: {verbosity: -1}\n",
			want: "FILE: logging.verbosity -1: expected a whole number from 0 to 4294967295"},
		{name: "manifests and kubeconfig",
			text: proxy + "clientConnection: {kubeconfig: /k}\n---\n" + own + "manifests: /m\n",
			want: "FILE: manifests /m: it replaces the API server, so it cannot be combined with a kubeconfig or a master"},
		{name: "quoted", text: proxy + "nftables: {masqueradeAll: \"true\"}\n",
			want: `FILE: nftables.masqueradeAll "true": expected true or false, without quotes`},
		{name: "quoted number", text: proxy + "conntrack: {maxPerCore: \"0\"}\n",
			want: `FILE: conntrack.maxPerCore "0": expected a whole number from -2147483648 to 2147483647, without quotes`},
		{name: "quoted gate", text: proxy + "featureGates: {AllowServiceExternalIPs: \"false\"}\n",
			want: `FILE: featureGates "false": expected true or false, without quotes`},
		{name: "takeover", text: own + "takeover: auto\nserviceProxyName: ours\n",
			want: "FILE: takeover auto: expected never, as FILE: serviceProxyName leaves the other Services to another proxy"},
		{name: "Service CIDRs", text: own + "serviceCIDRs: [10.96.0.1]\n",
			want: "FILE: serviceCIDRs 10.96.0.1: expected a CIDR such as 10.96.0.0/12"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := writeFile(t, tt.text)
			_, err := newReader(t, append(tt.args, "--config", file)...).Read()
			checkError(t, err, file, tt.want)
		})
	}
}

// TestUnreadable: what is wrong with the file itself is no *Error, for its exit code.
func TestUnreadable(t *testing.T) {
	directory := t.TempDir()
	for path, want := range map[string]string{
		directory: "--config " + directory + ": is a directory; expected a file of kind KubeProxyConfiguration",
		directory + "/none": "--config " + directory +
			"/none: no such file or directory; expected a file of kind KubeProxyConfiguration",
	} {
		_, err := newReader(t, "--config", path).Read()
		var setting *Error
		if err == nil || err.Error() != want || errors.As(err, &setting) {
			t.Errorf("got %v (%T), want %q", err, err, want)
		}
	}
}
