package config

import (
	"slices"
	"strings"
)

// A uselessField is a field of KubeProxyConfiguration, or a section, that has no effect here.
type uselessField struct {
	path     string
	harmless []string // values, besides zero, that kube-proxy takes or wrote by default
}

// uselessFields lists what of a KubeProxyConfiguration might be missed, as "path value":
// fields for other modes and systems, and of older versions, that do not have their default.
func uselessFields(tree map[string]any) []string {
	known := knownUseless()
	if mode, _ := tree["mode"].(string); mode == modeNFTables {
		known = append(known,
			uselessField{"iptables.masqueradeAll", nil},
			uselessField{"iptables.masqueradeBit", []string{"14"}},
			uselessField{"iptables.syncPeriod", []string{"30s"}},
			uselessField{"iptables.minSyncPeriod", []string{"1s"}})
	}
	var found []string
	for _, leaf := range leaves(tree, nil) {
		path := strings.Join(leaf.path, ".")
		if leaf.zero() {
			continue
		}
		for _, field := range known {
			if path != field.path && !strings.HasPrefix(path, field.path+".") {
				continue
			}
			if !slices.Contains(field.harmless, leaf.text()) {
				found = append(found, brief(path+" "+leaf.text()))
			}
			break
		}
	}
	return found
}

// knownUseless lists the fields; of two that match, the first counts. iptables.localhostNodePorts
// is not among them: it has a notice of its own.
func knownUseless() []uselessField {
	return []uselessField{
		{"mode", []string{modeNFTables}},
		{"ipvs.syncPeriod", []string{"30s"}},
		{"ipvs", nil},
		{"winkernel", nil},
		{"windowsRunAsService", nil},
		{"portRange", nil},
		{"featureGates", nil},
		{"showHiddenMetricsForVersion", nil},
		{"clientConnection.acceptContentTypes", nil},
		{"logging.vmodule", nil},
		{"logging.options", nil},
		{"configSyncPeriod", []string{"15m", "15m0s"}},
		{"udpIdleTimeout", []string{"250ms"}},
		{"resourceContainer", []string{"/kube-proxy"}},
		{"conntrack.max", nil},
	}
}
