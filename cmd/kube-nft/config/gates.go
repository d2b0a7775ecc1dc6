package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/features"

	"github.com/kube-nft/kube-nft/tracker"
)

// A Gate is a feature gate of Kubernetes that is about a Service proxy.
type Gate struct {
	Name  string
	Stage string // in the release that kube-nft follows
	On    bool   // where nothing else is given
	// Anyway says what kube-nft does whatever the gate's value is; empty if the value decides.
	Anyway string
	// True and False say what the two values do where they decide.
	True, False string
}

// Stages of gates to which AllAlpha and AllBeta apply.
const (
	alpha = "alpha"
	beta  = "beta"
)

// Names of gates whose values decide something.
const (
	GateFlagz     = "ComponentFlagz"
	GateStatusz   = "ComponentStatusz"
	gateAllAlpha  = "AllAlpha"
	gateAllBeta   = "AllBeta"
	gateLocalhost = "KubeProxyNFTablesLocalhostNodePorts"
	gateWatchList = "WatchListClient"
	// KEP-5707: it came with 1.36, where it is on; it is planned to be off by default from 1.40 on.
	gateExternalIPs = "AllowServiceExternalIPs"
)

// Follows is the release of Kubernetes whose kube-proxy decides about defaults.
const Follows = "1.37"

// Gates are all gates that kube-nft knows, by name. Defaults are kube-proxy's in the release that it
// follows.
var Gates = []Gate{
	{Name: gateAllAlpha, Stage: "since 1.7", True: "turns all gates on that are alpha and not given",
		False: "turns them off"},
	{Name: gateAllBeta, Stage: "since 1.7", True: "turns all gates on that are beta and not given",
		False: "turns them off"},
	{Name: gateExternalIPs, Stage: "deprecated", On: true, True: "external IPs are served that `--external-ips` allows",
		False: "stands for `--external-ips=none`, unless that flag or its field is given"},
	{Name: GateFlagz, Stage: beta, On: true, True: "serves `/flagz` at the metrics address", False: "does not"},
	{Name: GateStatusz, Stage: beta, On: true, True: "serves `/statusz` at the metrics address", False: "does not"},
	{Name: "KubeProxyIPVS", Stage: "deprecated", Anyway: "there is no IPVS mode"},
	// KEP-6032: kube-proxy has it on from 1.38 on. Here the addresses alone decide while it is not given.
	{Name: gateLocalhost, Stage: alpha, On: true,
		True:  "node ports are served at localhost, if `--nodeport-addresses` names it",
		False: "they are not, unless with `--localhost-nodeports`"},
	{Name: "LoadBalancerIPMode", Stage: "GA in 1.32", On: true, Anyway: "status.loadBalancer.ingress.ipMode is followed"},
	{Name: "MultiCIDRServiceAllocator", Stage: "GA in 1.34", On: true,
		Anyway: "ServiceCIDR objects are followed where the API server has them"},
	{Name: "NFTablesNetlink", Stage: beta, On: true, Anyway: "nf_tables are read and written over netlink, without nft"},
	{Name: "NFTablesProxyMode", Stage: "GA in 1.33", On: true, Anyway: "nftables is the only mode"},
	{Name: "PreferSameTrafficDistribution", Stage: "GA in 1.35", On: true,
		Anyway: "hints of EndpointSlices for nodes and zones are followed"},
	{Name: "ProxyTerminatingEndpoints", Stage: "GA in 1.28", On: true,
		Anyway: "terminating endpoints serve where no others are left"},
	{Name: "ServiceTrafficDistribution", Stage: "GA in 1.33", On: true,
		Anyway: "hints of EndpointSlices for zones are followed"},
	{Name: "TopologyAwareHints", Stage: "GA in 1.33", On: true, Anyway: "hints of EndpointSlices for zones are followed"},
	{Name: gateWatchList, Stage: beta, On: true, True: "objects come as a streaming list, where the API server has it",
		False: "objects come as an ordinary list"},
}

// resolveGates reports the given gates without effect, and keeps those that have one. A gate has the value that is
// given for it, else the one for its stage, else its default.
func (r *reading) resolveGates(c *Config) error {
	kept := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(r.proxy.FeatureGates)) {
		value := r.proxy.FeatureGates[name]
		reason := "there is no such gate here"
		i := slices.IndexFunc(Gates, func(g Gate) bool { return strings.EqualFold(g.Name, name) })
		switch {
		case i < 0:
		case Gates[i].Name != name:
			reason += "; is " + Gates[i].Name + " meant?"
		case Gates[i].Anyway == "":
			kept[name] = value
			continue
		case Gates[i].On == value: // what happens anyway
			continue
		default:
			reason = "in any case " + Gates[i].Anyway
		}
		origin := r.file + ": featureGates."
		if _, byFlag := r.gatesByFlag[name]; byFlag {
			origin = "--feature-gates "
		}
		r.notices = append(r.notices, fmt.Sprintf("%s has no effect in kube-nft: %s",
			brief(fmt.Sprintf("%s%s %t", origin, name, value)), reason))
	}
	r.proxy.FeatureGates = kept
	c.Gates = make(map[string]bool)
	for _, known := range Gates {
		c.Gates[known.Name] = known.On
		stage := map[string]string{alpha: gateAllAlpha, beta: gateAllBeta}[known.Stage]
		for _, name := range []string{stage, known.Name} {
			if value, given := kept[name]; given && known.Anyway == "" {
				c.Gates[known.Name] = value
			}
		}
	}
	if on, given := kept[gateWatchList]; given {
		c.watchList = &on
	}
	return nil
}

// defaultExternalIPs is what kube-proxy of the release that go.mod names does without a setting.
const defaultExternalIPs = "all"

// resolveExternalIPs reads which external IPs are allowed. Our own setting wins over the feature gate,
// for it says more.
func (r *reading) resolveExternalIPs(c *Config) (err error) {
	none := []string{"none"}
	switch {
	case c.Gates[gateExternalIPs], slices.Equal(r.own.ExternalIPs, none):
	case r.given("external-ips"):
		r.notices = append(r.notices, "the feature gate "+gateExternalIPs+" is false, but "+r.name("external-ips")+" "+
			strings.Join(r.own.ExternalIPs, ",")+" wins")
		delete(r.proxy.FeatureGates, gateExternalIPs)
	default:
		r.own.ExternalIPs = none
	}
	if c.ExternalIPs, err = tracker.ParseExternalIPs(r.own.ExternalIPs); err != nil {
		return &Error{Setting: r.name("external-ips"), Reason: err.Error()}
	}
	c.Gates[gateExternalIPs] = !slices.Equal(r.own.ExternalIPs, none)
	return nil
}

// setWatchList sets whether client-go may ask for streaming lists. client-go has one such switch
// for the whole process.
func (c *Config) setWatchList() {
	gates, ok := features.FeatureGates().(interface {
		Set(features.Feature, bool) error
	})
	if ok && c.watchList != nil {
		_ = gates.Set(features.WatchListClient, *c.watchList) // fails for gates alone that it does not know
	}
}

// gateValues is the flag --feature-gates: NAME=true or NAME=false, with commas between them.
type gateValues struct{ values *map[string]bool }

// Set implements pflag.Value. Several flags add up.
func (g gateValues) Set(text string) error {
	values := make(map[string]bool)
	maps.Copy(values, *g.values)
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("%s: expected NAME=true or NAME=false", brief(part))
		}
		values[strings.TrimSpace(name)] = on
	}
	*g.values = values
	return nil
}

// String implements pflag.Value.
func (g gateValues) String() string {
	if g.values == nil { // pflag compares with a zero value
		return ""
	}
	return gatesText(*g.values)
}

// Type implements pflag.Value.
func (g gateValues) Type() string { return "gates" }

// gatesText writes gates as --feature-gates takes them.
func gatesText(gates map[string]bool) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		parts = append(parts, fmt.Sprintf("%s=%t", name, gates[name]))
	}
	return strings.Join(parts, ",")
}
