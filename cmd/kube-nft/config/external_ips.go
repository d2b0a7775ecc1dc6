package config

import (
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/tracker"
)

// defaultExternalIPs is what kube-proxy of the release that go.mod names does without a setting.
const defaultExternalIPs = "all"

// resolveExternalIPs reads which external IPs are allowed. Our own setting wins over the feature gate,
// for it says more.
func (r *reading) resolveExternalIPs(c *Config) (err error) {
	none := []string{"none"}
	switch {
	case r.gate(gateExternalIPs), slices.Equal(r.own.ExternalIPs, none):
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
