package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
)

// A reading turns flags and a file into a Config.
type reading struct {
	document
	flags       *pflag.FlagSet
	file        string
	fields      map[string]string // by flag: the field of the file that gives the setting
	gatesByFlag map[string]bool
	notices     []string
	overrides   []Override
}

// given reports whether a flag or the file gives the setting.
func (r *reading) given(flag string) bool { return r.flags.Changed(flag) || r.fields[flag] != "" }

// name returns the setting's name for a user: the flag, or the field of the file.
func (r *reading) name(flag string) string {
	if field := r.fields[flag]; field != "" {
		return r.file + ": " + field
	}
	return "--" + flag
}

// invalid returns the error that refuses the value of a setting.
func (r *reading) invalid(flag, value, reason string) error {
	if value == "" {
		value = `""`
	}
	return &Error{Setting: r.name(flag), Value: value, Reason: reason}
}

// merge copies the values of a file into the settings, except where a flag was given.
func (r *reading) merge(file *document) {
	r.notices = append(r.notices, file.ignored...)
	if len(file.useless) > 0 {
		r.notices = append(r.notices, r.file+": no effect in kube-nft: "+strings.Join(file.useless, ", "))
	}
	for _, s := range settings {
		if s.weaker != "" && file.proxy.Mode != modeNFTables {
			r.set(&s, s.weaker, file.at(s.weaker))
		}
		r.set(&s, s.field, file.at(s.field))
		if s.stronger != "" {
			r.set(&s, s.stronger, file.at(s.stronger))
		}
		switch empty := reflect.ValueOf(new(string)); {
		case s.flag == "healthz-bind-address" && file.own.HealthzDisabled:
			r.set(&s, "healthzDisabled", empty)
		case s.flag == "metrics-bind-address" && file.own.MetricsDisabled:
			r.set(&s, "metricsDisabled", empty)
		}
		if r.flags.Changed(s.flag) {
			r.override(&s, file)
		}
	}
	r.mergeGates(file.proxy.FeatureGates)
	if field := r.fields["min-sync-period"]; strings.HasSuffix(field, ".minSyncPeriod") &&
		r.proxy.NFTables.MinSyncPeriod.Duration == proxyMinSyncPeriod {
		r.notices = append(r.notices,
			fmt.Sprintf("%s: %s %s: changes wait for up to a second, as with kube-proxy, whose default it is; remove "+
				"the field for %s, or set minSyncPeriod in %s",
				r.file, field, proxyMinSyncPeriod, defaults().proxy.NFTables.MinSyncPeriod.Duration, ownKind))
	}
	// kube-proxy's default is true, too: the file does not show whether an operator chose it.
	if asked := file.proxy.IPTables.LocalhostNodePorts; asked != nil && *asked && !*r.own.LocalhostNodePorts &&
		!slices.Contains(r.proxy.NodePortAddresses, "localhost") {
		r.notices = append(r.notices,
			r.file+": iptables.localhostNodePorts true: node ports are not served at localhost without --localhost-nodeports")
	}
}

// proxyMinSyncPeriod is kube-proxy's default of minSyncPeriod. Its --write-config-to writes it into
// files in which no operator chose it.
const proxyMinSyncPeriod = time.Second

// leftOut reports whether a field of a file counts as left out. A pointer to zero counts as given.
func leftOut(field reflect.Value) bool {
	return field.IsZero() || field.Kind() == reflect.Slice && field.Len() == 0
}

// set copies the value of a field into a setting, unless the field counts as left out or a flag wins.
func (r *reading) set(s *setting, field string, from reflect.Value) {
	to := r.at(s.field)
	if r.flags.Changed(s.flag) || leftOut(from) || from.Kind() == reflect.Map {
		return
	}
	if from.Kind() == reflect.Pointer && to.Kind() != reflect.Pointer {
		from = from.Elem()
	}
	to.Set(from)
	r.fields[s.flag] = field
}

// An Override is a flag that wins over a field of the file with another value.
type Override struct {
	Flag, Value      string
	Field, FileValue string
}

// override records that a given flag wins over the file, if their values differ.
func (r *reading) override(s *setting, file *document) {
	field := s.field
	switch {
	case s.stronger != "" && !leftOut(file.at(s.stronger)):
		field = s.stronger
	case leftOut(file.at(field)) && s.weaker != "" && file.proxy.Mode != modeNFTables:
		field = s.weaker
	}
	value := file.at(field)
	if leftOut(value) || value.Kind() == reflect.Map {
		return
	}
	flag, theirs := r.flags.Lookup(s.flag).Value.String(), valueText(value)
	if flag = strings.Trim(flag, "[]"); flag != theirs {
		r.overrides = append(r.overrides, Override{Flag: "--" + s.flag, Value: brief(flag), Field: field,
			FileValue: brief(theirs)})
	}
}

// mergeGates adds the file's feature gates to those of the flag. A gate of the flag wins.
func (r *reading) mergeGates(file map[string]bool) {
	r.gatesByFlag = r.proxy.FeatureGates
	merged := make(map[string]bool)
	maps.Copy(merged, file)
	for _, name := range slices.Sorted(maps.Keys(r.gatesByFlag)) {
		value := r.gatesByFlag[name]
		if theirs, found := file[name]; found && theirs != value {
			r.overrides = append(r.overrides, Override{
				Flag: "--feature-gates " + brief(name), Value: strconv.FormatBool(value), Field: "featureGates." + brief(name),
				FileValue: strconv.FormatBool(theirs),
			})
		}
		merged[name] = value
	}
	r.proxy.FeatureGates = merged
}

// valueText writes a value of a field as its flag takes it.
func valueText(v reflect.Value) string {
	v = reflect.Indirect(v)
	switch value := v.Interface().(type) {
	case metav1.Duration:
		return value.Duration.String()
	case []string:
		return strings.Join(value, ",")
	}
	return fmt.Sprint(v.Interface())
}

// resolve checks the settings against each other and turns them into a Config.
func (r *reading) resolve() (*Config, error) {
	c := &Config{File: r.file}
	for _, step := range []func(*Config) error{
		r.resolveGates, r.resolveSource, r.checkChoices, r.resolveNode, r.resolvePods, r.resolveNodePorts,
		r.resolveExternalIPs, r.resolveRuleset, r.resolveServers, r.resolveProcess, r.resolveLog,
	} {
		if err := step(c); err != nil {
			return nil, err
		}
	}
	c.Notices, c.Overrides, c.effective = r.notices, r.overrides, r.document
	return c, nil
}

// checkChoices refuses values of settings that take one of a few words.
func (r *reading) checkChoices(*Config) error {
	r.proxy.DetectLocalMode = cmp.Or(r.proxy.DetectLocalMode, detectClusterCIDR) // as kube-proxy reads an empty flag
	for _, s := range settings {
		if s.choice == "" || !r.given(s.flag) {
			continue
		}
		if value := r.at(s.field).String(); !slices.Contains(strings.Fields(s.choice), value) {
			return r.invalid(s.flag, value, expected(s.flag))
		}
	}
	return nil
}

// resolveSource chooses between files and an API server: a flag wins over the file.
func (r *reading) resolveSource(c *Config) error {
	flag := "mode"
	if r.flags.Changed("proxy-mode") {
		flag = "proxy-mode"
	}
	mode := r.proxy.Mode
	r.proxy.Mode = modeNFTables
	switch mode {
	case modeNFTables, "":
	case modeShadow:
		if r.own.ServiceProxyName != "" {
			return r.invalid(flag, string(mode), "expected nftables, as kube-proxy does not serve the Services of "+
				r.name("service-proxy-name"))
		}
		r.proxy.Mode, c.Shadow = mode, true
	case "iptables", "ipvs", "userspace", "kernelspace":
		if r.flags.Changed("mode") {
			r.notices = append(r.notices, "no effect in kube-nft: --"+flag+" "+string(mode))
		}
	default:
		return r.invalid(flag, string(mode), expected("mode"))
	}
	client := &r.proxy.ClientConnection
	if r.own.Manifests != "" && (client.Kubeconfig != "" || r.own.Master != "") {
		byFlag := r.flags.Changed("manifests")
		switch server := r.flags.Changed("kubeconfig") || r.flags.Changed("master"); {
		case byFlag == server:
			return r.invalid("manifests", r.own.Manifests,
				"it replaces the API server, so it cannot be combined with a kubeconfig or a master")
		case byFlag:
			for flag, value := range map[string]string{"kubeconfig": client.Kubeconfig, "master": r.own.Master} {
				if value != "" {
					r.overrides = append(r.overrides, Override{Flag: "--manifests", Value: r.own.Manifests, Field: r.fields[flag],
						FileValue: value})
				}
			}
			client.Kubeconfig, r.own.Master = "", ""
		default:
			winner, value := "--kubeconfig", client.Kubeconfig
			if !r.flags.Changed("kubeconfig") {
				winner, value = "--master", r.own.Master
			}
			r.overrides = append(r.overrides, Override{Flag: winner, Value: value, Field: r.fields["manifests"],
				FileValue: r.own.Manifests})
			r.own.Manifests = ""
		}
	}
	c.Manifests = r.own.Manifests
	if client.Burst < 0 { // a negative QPS means no limit, as in kube-proxy
		return r.invalid("kube-api-burst", fmt.Sprint(client.Burst), "expected a number that is not negative")
	}
	client.QPS, client.Burst, client.ContentType = cmp.Or(client.QPS, defaultQPS), cmp.Or(client.Burst,
		defaultBurst), cmp.Or(client.ContentType, protobuf)
	c.Connection = informer.Connection{Kubeconfig: client.Kubeconfig, Master: r.own.Master, QPS: client.QPS,
		Burst: int(client.Burst), ContentType: client.ContentType, UserAgent: userAgent()}
	if len(validation.IsValidLabelValue(r.own.ServiceProxyName)) > 0 {
		return r.invalid("service-proxy-name", r.own.ServiceProxyName,
			"expected the value of a label: at most 63 letters, digits, -, _ and ., with a letter or digit at both ends")
	}
	c.ServiceProxyName = r.own.ServiceProxyName
	for _, text := range r.own.ServiceCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return r.invalid("service-cidr", text, "expected a CIDR such as 10.96.0.0/12")
		}
		c.ServiceCIDRs = append(c.ServiceCIDRs, prefix.Masked())
	}
	return nil
}

func (r *reading) resolveNode(c *Config) error {
	name := r.proxy.HostnameOverride
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return fmt.Errorf("name of this node: %w; pass --hostname-override NAME", err)
		}
	}
	if c.NodeName = strings.ToLower(strings.TrimSpace(name)); c.NodeName == "" {
		return r.invalid("hostname-override", fmt.Sprintf("%q", r.proxy.HostnameOverride), "expected the name of a node")
	}
	r.proxy.BindAddress = cmp.Or(r.proxy.BindAddress, anyAddress) // an empty flag counts as not given, as with kube-proxy
	addr, err := netip.ParseAddr(r.proxy.BindAddress)
	if err != nil {
		return r.invalid("bind-address", r.proxy.BindAddress, "expected an IP address")
	}
	if !addr.IsUnspecified() {
		c.NodeAddresses = []netip.Addr{addr}
	}
	return nil
}

// resolvePods finds out how the rules recognise pods.
func (r *reading) resolvePods(c *Config) error {
	c.Pods = make(map[nft.Family]layout.PodMatch)
	mode, flag, name := string(r.proxy.DetectLocalMode), "pod-bridge-interface", r.proxy.DetectLocal.BridgeInterface
	switch mode {
	case detectClusterCIDR:
		cidrs := r.proxy.ClusterCIDR
		if cidrs == "" {
			return nil
		}
		for text := range strings.SplitSeq(cidrs, ",") {
			prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
			if err != nil {
				return r.invalid("cluster-cidr", cidrs, "expected a CIDR such as 10.244.0.0/16, or one of each family with a comma")
			}
			family := tracker.FamilyOf(prefix.Addr())
			if _, twice := c.Pods[family]; twice {
				return r.invalid("cluster-cidr", cidrs, "expected no more than one CIDR of a family")
			}
			c.Pods[family] = layout.PodMatch{CIDR: prefix.Masked()}
		}
		return nil
	case detectNodeCIDR:
		c.PodsFromNode = true
		return nil
	case detectPrefix:
		flag, name = "pod-interface-name-prefix", r.proxy.DetectLocal.InterfaceNamePrefix
	}
	switch {
	case name == "":
		field := map[string]string{detectBridge: "bridgeInterface", detectPrefix: "interfaceNamePrefix"}[mode]
		return r.invalid("detect-local-mode", mode, "it needs --"+flag+" or, in a file, detectLocal."+field)
	// The kernel's names have at most 15 bytes (IFNAMSIZ in linux/if.h is 16 with the NUL).
	case len(name) > 15 || strings.ContainsAny(name, " \t\n\"/*\\"):
		return r.invalid(flag, name, "expected the name of a network interface, at most 15 bytes")
	}
	for _, family := range nft.Families {
		c.Pods[family] = layout.PodMatch{Interface: name, Prefix: mode == detectPrefix}
	}
	return nil
}

// resolveNodePorts decides where node ports are served. With --localhost-nodeports the ruleset serves
// IPv4 at localhost. That takes a sysctl with consequences for the whole node. What else is served at
// localhost, the daemon serves itself.
func (r *reading) resolveNodePorts(c *Config) (err error) {
	if len(r.proxy.NodePortAddresses) == 0 {
		r.proxy.NodePortAddresses = []string{"primary"}
	}
	if c.NodePorts, err = proxysync.ParseNodePortAddresses(r.proxy.NodePortAddresses); err != nil {
		return &Error{Setting: r.name("nodeport-addresses"), Reason: err.Error()}
	}
	c.LocalhostNodePorts = *r.own.LocalhostNodePorts
	for _, family := range tracker.Families {
		switch listed := c.NodePorts.Localhost(family); {
		case c.LocalhostNodePorts && family == tracker.IPv4: // by the ruleset
		case c.LocalhostNodePorts, listed && c.Gates[gateLocalhost]:
			c.LocalhostProxies = append(c.LocalhostProxies, family)
		case listed:
			r.notices = append(r.notices,
				fmt.Sprintf("the feature gate %s is false: the %s loopback addresses in %s have no effect", gateLocalhost, family,
					r.name("nodeport-addresses")))
		}
	}
	return nil
}

// resolveRuleset resolves the settings of the ruleset. A ServiceProxyName turns the takeover off: the
// node then has another proxy, which needs its rules. Manifests turn it off unless it was asked for,
// because files seldom hold a whole cluster.
func (r *reading) resolveRuleset(c *Config) error {
	nftables, own := &r.proxy.NFTables, &r.own
	bit, least, most := *nftables.MasqueradeBit, nftables.MinSyncPeriod.Duration, nftables.SyncPeriod.Duration
	switch {
	case bit < 0 || bit > 31:
		return r.invalid("masquerade-bit", fmt.Sprint(bit), "expected a bit of the packet mark, 0 to 31")
	case own.AffinitySize == 0:
		return r.invalid("affinity-size", "0", "expected at least 1 client")
	case own.NamespaceQuota == 0:
		return r.invalid("namespace-quota", "0", "expected at least 1 element")
	case least < 0:
		return r.invalid("min-sync-period", least.String(), "expected a duration that is not negative")
	case most <= 0:
		return r.invalid("sync-period", most.String(), "expected more than 0s")
	case least > most:
		return r.invalid("min-sync-period", least.String(), fmt.Sprintf("expected no more than %s, the value of %s", most,
			r.name("sync-period")))
	case own.TakeoverDrain.Duration < 0:
		return r.invalid("takeover-drain-timeout", own.TakeoverDrain.Duration.String(),
			"expected a duration that is not negative")
	case !filepath.IsAbs(own.HostProc):
		return r.invalid("host-proc", own.HostProc, "expected an absolute path")
	case own.ServiceProxyName != "" && own.Takeover != never && r.given("takeover"):
		return r.invalid("takeover", own.Takeover,
			fmt.Sprintf("expected never, as %s leaves the other Services to another proxy", r.name("service-proxy-name")))
	case own.ServiceProxyName != "", r.own.Manifests != "" && !r.given("takeover"):
		own.Takeover = never
	}
	c.MasqueradeAll, c.MasqueradeBit, c.AffinitySize, c.NamespaceQuota = nftables.MasqueradeAll, uint8(bit),
		own.AffinitySize, own.NamespaceQuota
	c.FlowMetrics = own.FlowMetrics
	c.ConnectionCounters, c.EndpointCounters = own.ConnectionCounters ||
		own.EndpointConnectionCounters, own.EndpointConnectionCounters
	c.Defaults = tracker.Settings{ResetDeparted: own.ConnectionsOfDeparted == reset,
		SourceRangesForNodePorts: own.SourceRangesForNodePorts, Ping: own.PingVIPs,
		Eject: own.EjectEndpoints}
	c.MinSyncPeriod, c.SyncPeriod, c.HostProc = least, most, own.HostProc
	c.TakeoverDrain, c.KeepProxyTable = own.TakeoverDrain.Duration, own.KeepKubeProxyTable
	c.Takeover, c.ForceTakeover, c.TableOwnership = own.Takeover != never && !c.Shadow, own.Takeover == force,
		own.TableOwnership == auto
	return nil
}

// resolveServers decides where the servers listen. Defaults have the family of the bind address.
func (r *reading) resolveServers(c *Config) (err error) {
	anywhere, loopback := netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if bind, err := netip.ParseAddr(r.proxy.BindAddress); err == nil && bind.Is6() {
		anywhere, loopback = netip.IPv6Unspecified(), netip.IPv6Loopback()
	}
	if c.Healthz, err = r.resolveServer("healthz-bind-address", &r.proxy.HealthzBindAddress,
		netip.AddrPortFrom(anywhere, healthzPort)); err != nil {
		return err
	}
	if c.Metrics, err = r.resolveServer("metrics-bind-address", &r.proxy.MetricsBindAddress,
		netip.AddrPortFrom(loopback, metricsPort)); err != nil {
		return err
	}
	if c.Shadow {
		c.Healthz, c.Metrics = besideProxy(c.Healthz), besideProxy(c.Metrics)
	}
	a, b := c.Healthz, c.Metrics
	switch {
	case a.IsValid() && a.Port() == b.Port() && (a.Addr() == b.Addr() || a.Addr().IsUnspecified() ||
		b.Addr().IsUnspecified()):
		return r.invalid("metrics-bind-address", b.String(), fmt.Sprintf("expected another port than that of %s, %s",
			r.name("healthz-bind-address"), a))
	case r.proxy.EnableProfiling && !b.IsValid():
		return r.invalid("profiling", "true", fmt.Sprintf("it needs an address in %s", r.name("metrics-bind-address")))
	}
	c.BindAddressHardFail, c.Profiling = r.proxy.BindAddressHardFail, r.proxy.EnableProfiling
	return nil
}

// The ports of kube-proxy's health and metrics servers by default, and how much higher those of the shadow mode are.
const (
	healthzPort, metricsPort = 10256, 10249
	shadowPorts              = 100
)

// besideProxy returns the address that stands for one in the shadow mode. kube-proxy needs its ports: if it restarts,
// it must find them free.
func besideProxy(address netip.AddrPort) netip.AddrPort {
	if port := address.Port(); port == healthzPort || port == metricsPort {
		return netip.AddrPortFrom(address.Addr(), port+shadowPorts)
	}
	return address
}

// resolveServer reads an address and completes it if its IP or port is missing. An empty text gives
// the zero AddrPort: no server.
func (r *reading) resolveServer(flag string, text *string, fallback netip.AddrPort) (netip.AddrPort, error) {
	switch {
	case !r.given(flag):
		*text = fallback.String()
		return fallback, nil
	case *text == "":
		return netip.AddrPort{}, nil
	}
	address, err := netip.ParseAddrPort(*text)
	if addr, addrErr := netip.ParseAddr(*text); addrErr == nil {
		address, err = netip.AddrPortFrom(addr, fallback.Port()), nil
	} else if digits, found := strings.CutPrefix(*text, ":"); found {
		var port uint64
		port, err = strconv.ParseUint(digits, 10, 16)
		address = netip.AddrPortFrom(fallback.Addr(), uint16(port))
	}
	if err != nil || address.Port() == 0 {
		return netip.AddrPort{}, r.invalid(flag, *text, fmt.Sprintf("expected an IP address and a port such as %s", fallback))
	}
	*text = address.String()
	return address, nil
}

// resolveProcess resolves settings of the kernel and of this process.
func (r *reading) resolveProcess(c *Config) error {
	t := &r.proxy.Conntrack
	c.Conntrack = conntrack.Settings{
		MaxPerCore:     *t.MaxPerCore,
		Min:            *t.Min,
		TCPEstablished: t.TCPEstablishedTimeout.Duration,
		TCPCloseWait:   t.TCPCloseWaitTimeout.Duration,
		UDP:            t.UDPTimeout.Duration,
		UDPStream:      t.UDPStreamTimeout.Duration,
		TCPBeLiberal:   t.TCPBeLiberal,
	}
	for _, s := range settings {
		if !strings.HasPrefix(s.field, "conntrack.") {
			continue
		}
		switch value := reflect.Indirect(r.at(s.field)).Interface().(type) {
		case int32:
			if value < 0 {
				return r.invalid(s.flag, fmt.Sprint(value), "expected a number that is not negative")
			}
		case metav1.Duration:
			if value.Duration < 0 {
				return r.invalid(s.flag, value.Duration.String(), "expected a duration that is not negative")
			}
		}
	}
	if c.OOMScoreAdj = int(*r.proxy.OOMScoreAdj); c.OOMScoreAdj < -1000 || c.OOMScoreAdj > 1000 {
		return r.invalid("oom-score-adj", fmt.Sprint(c.OOMScoreAdj), "expected -1000 to 1000")
	}
	return nil
}

// debugVerbosity is the lowest verbosity (kube-proxy's -v) that logs details for debugging.
const debugVerbosity = 4

// levelOf returns the log level for one of kube-proxy's verbosities: debug from debugVerbosity on,
// info below.
func levelOf(verbosity uint32) zapcore.Level {
	if verbosity >= debugVerbosity {
		return zapcore.DebugLevel
	}
	return zapcore.InfoLevel
}

// ParseVerbosity reads the level that one of kube-proxy's verbosities means.
func ParseVerbosity(text string) (zapcore.Level, error) {
	verbosity, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return zapcore.InfoLevel,
			errors.New("expected a whole number, 0 to 4294967295: from 4 on it means the level debug, else info")
	}
	return levelOf(uint32(verbosity)), nil
}

// VerbosityText is the least verbosity that stands for a level.
func VerbosityText(level zapcore.Level) string {
	if level == zapcore.DebugLevel {
		return strconv.Itoa(debugVerbosity)
	}
	return "0"
}

// ParseLevel reads a level as --log-level takes it.
func ParseLevel(text string) (zapcore.Level, error) {
	if !slices.Contains(Choices()["log-level"], text) {
		return zapcore.InfoLevel, errors.New(expected("log-level"))
	}
	return zapcore.ParseLevel(text)
}

// resolveLog combines our settings with kube-proxy's. A flag wins over the file; otherwise ours win.
func (r *reading) resolveLog(c *Config) error {
	logging, own := &r.proxy.Logging, &r.own
	format := map[string]string{"text": "console", "json": "json"}[logging.Format]
	r.combine("v", fmt.Sprint(logging.Verbosity), levelOf(uint32(logging.Verbosity)).String(), "log-level", &own.LogLevel)
	r.combine("logging-format", logging.Format, format, "log-format", &own.LogFormat)
	level, err := ParseLevel(own.LogLevel)
	c.LogLevel, c.LogFormat = zap.NewAtomicLevelAt(level), own.LogFormat
	return err
}

// combine gives our setting the meaning of kube-proxy's, if kube-proxy's was given and wins.
func (r *reading) combine(theirs, value, means, ours string, setting *string) {
	switch flags := r.flags; {
	case !r.given(theirs):
	case !r.given(ours):
		*setting = means
	case flags.Changed(theirs) && !flags.Changed(ours):
		if means != *setting {
			r.overrides = append(r.overrides, Override{Flag: "--" + theirs, Value: value, Field: r.fields[ours],
				FileValue: *setting})
		}
		*setting = means
	case flags.Changed(ours) && !flags.Changed(theirs) && means != *setting:
		r.overrides = append(r.overrides, Override{Flag: "--" + ours, Value: *setting, Field: r.fields[theirs],
			FileValue: value})
	}
}
