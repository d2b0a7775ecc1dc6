package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// NormalizeName makes cluster_cidr and cluster-cidr one flag, as kube-proxy does.
func NormalizeName(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

// proxyFlags are flags of kube-proxy's that existing command lines may hold and that must not fail:
// second names of flags, and flags without effect here, because they serve another mode, another
// system, or a way of logging.
type proxyFlags struct {
	flags      *pflag.FlagSet
	effectless []effectless
}

// An alias is a second name of a flag.
type alias struct {
	name, of  string
	translate func(string) (string, error) // to what the other flag takes; nil: the same
}

var aliases = []alias{
	{"iptables-min-sync-period", "min-sync-period", nil},
	{"iptables-masquerade-bit", "masquerade-bit", nil},
	{"iptables-sync-period", "sync-period", nil},
	{"proxy-mode", "mode", nil},
	{"healthz-port", "healthz-bind-address", portAddress},
	{"metrics-port", "metrics-bind-address", portAddress},
	{"iptables-localhost-nodeports", "localhost-nodeports", nil}, // an operator who sets it wants what it says
}

// An effectless flag has no effect here.
type effectless struct {
	name     string
	harmless []string // values that mean what happens anyway
}

// declare declares the flags, hidden from --help. A switch needs no value.
func (p *proxyFlags) declare() {
	hidden := func(name string, isSwitch bool) {
		p.flags.String(name, "", "")
		flag := p.flags.Lookup(name)
		if flag.Hidden = true; isSwitch {
			flag.NoOptDefVal = "true"
		}
	}
	for _, alias := range aliases {
		hidden(alias.name, p.flags.Lookup(alias.of).NoOptDefVal != "")
	}
	add := func(names string, isSwitch bool, harmless ...string) {
		for name := range strings.FieldsSeq(names) {
			hidden(name, isSwitch)
			p.effectless = append(p.effectless, effectless{name, harmless})
		}
	}
	add(`ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout
		ipvs-udp-timeout proxy-port-range udp-timeout resource-container show-hidden-metrics-for-version
		vmodule network-name source-vip root-hnsendpoint-name log-dir log-file log-backtrace-at
		log-text-info-buffer-size log-json-info-buffer-size azure-container-registry-config boot-id-file
		machine-id-file`, false, "")
	add("config-sync-period", false, "", "15m", "15m0s") // watches miss nothing that would have to be looked at again
	add(`ipvs-strict-arp enable-dsr forward-healthcheck-vip windows-service
		log-text-split-stream log-json-split-stream add-dir-header skip-headers`, true, "false")
	add("logtostderr cleanup-ipvs", true, "true")
	// Log lines always go to stderr at once, one by one.
	for _, name := range []string{"alsologtostderr", "skip-log-headers", "one-output"} {
		hidden(name, true)
	}
	for _, name := range []string{"log-flush-frequency", "log-file-max-size", "stderrthreshold"} {
		hidden(name, false)
	}
}

// useless lists the given flags without effect that an operator might miss.
func (p *proxyFlags) useless() (given []string) {
	for _, flag := range p.effectless {
		if value := p.flags.Lookup(flag.name).Value.String(); p.flags.Changed(flag.name) &&
			!slices.Contains(flag.harmless, value) {
			given = append(given, brief("--"+flag.name+" "+value))
		}
	}
	return given
}

// resolveAliases gives flags the values of their other names.
func (p *proxyFlags) resolveAliases() error {
	for _, alias := range aliases {
		if !p.flags.Changed(alias.name) {
			continue
		}
		value := p.flags.Lookup(alias.name).Value.String()
		if err := p.resolve(&alias, value); err != nil {
			return &Error{Setting: "--" + alias.name, Value: value, Reason: err.Error()}
		}
	}
	return nil
}

func (p *proxyFlags) resolve(a *alias, value string) (err error) {
	if a.translate != nil {
		if value, err = a.translate(value); err != nil {
			return err
		}
	}
	flag := p.flags.Lookup(a.of)
	before, given := flag.Value.String(), flag.Changed
	if p.flags.Set(a.of, value) != nil {
		expected := map[string]string{"duration": "a duration such as 30s", "int32": "a whole number",
			"bool": "true or false"}[flag.Value.Type()]
		return errors.New("expected " + expected)
	}
	if given && flag.Value.String() != before {
		return fmt.Errorf("it is another name of --%s, which is given as %s; give one of them", a.of, before)
	}
	return nil
}

// portAddress turns a port into an address to listen at; 0 means none.
func portAddress(text string) (string, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err != nil:
		return "", errors.New("expected a port, or 0 for no server")
	case port == 0:
		return "", nil
	}
	return ":" + text, nil
}
