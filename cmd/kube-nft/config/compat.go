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

// A text is the value of a flag that is kept as it was given.
type text string

func (t *text) String() string         { return string(*t) }
func (t *text) Set(value string) error { *t = text(value); return nil }
func (t *text) Type() string           { return "string" }

// addText declares a flag that --help does not list. A switch can stand without a value.
func addText(f *pflag.FlagSet, name string, isSwitch bool) *text {
	var t text
	flag := f.VarPF(&t, name, "", "")
	flag.Hidden = true
	if isSwitch {
		flag.NoOptDefVal = "true"
	}
	return &t
}

// An alias is a second name of a flag.
type alias struct {
	name, of  string
	given     *text
	translate func(string) (string, error) // to what the other flag takes; nil: the same
}

func (r *Reader) addAlias(name, of string, translate func(string) (string, error)) {
	r.aliases = append(r.aliases, alias{name, of, addText(r.flags, name, false), translate})
}

// portAddress turns a port, of which 0 means none, into an address to listen at.
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

// resolveAliases gives flags the values that their other names were given.
func (r *Reader) resolveAliases() error {
	for _, alias := range r.aliases {
		if !r.flags.Changed(alias.name) {
			continue
		}
		if err := r.resolveAlias(&alias); err != nil {
			return &Error{Setting: "--" + alias.name, Value: alias.given.String(), Reason: err.Error()}
		}
	}
	return nil
}

func (r *Reader) resolveAlias(a *alias) error {
	value := a.given.String()
	if a.translate != nil {
		var err error
		if value, err = a.translate(value); err != nil {
			return err
		}
	}
	flag := r.flags.Lookup(a.of)
	before, given := flag.Value.String(), flag.Changed
	if r.flags.Set(a.of, value) != nil {
		return errors.New(expectation(flag.Value.Type()))
	}
	if given && flag.Value.String() != before {
		return fmt.Errorf("it is another name of --%s, which is given as %s; give one of them", a.of, before)
	}
	return nil
}

// expectation describes the values of a type of flags.
func expectation(flagType string) string {
	switch flagType {
	case "duration":
		return "expected a duration such as 30s"
	case "int32":
		return "expected a whole number"
	}
	return "expected another value"
}

// A useless flag is one of kube-proxy's that has no effect here, as it serves another mode,
// another system, or a way of logging.
type useless struct {
	name     string
	harmless []string // values that mean what happens anyway
	given    *text
}

// addUseless declares kube-proxy's flags on which existing command lines must not fail.
func (r *Reader) addUseless() {
	add := func(names string, isSwitch bool, harmless ...string) {
		for _, name := range strings.Fields(names) {
			r.useless = append(r.useless, useless{name, harmless, addText(r.flags, name, isSwitch)})
		}
	}
	add(`ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout
		ipvs-udp-timeout proxy-port-range udp-timeout resource-container feature-gates show-hidden-metrics-for-version
		vmodule network-name source-vip root-hnsendpoint-name log-dir log-file log-backtrace-at
		log-text-info-buffer-size log-json-info-buffer-size azure-container-registry-config boot-id-file
		machine-id-file`, false, "")
	add("config-sync-period", false, "", "15m", "15m0s") // watches miss nothing that would have to be looked at again
	add(`ipvs-strict-arp iptables-localhost-nodeports enable-dsr forward-healthcheck-vip windows-service
		log-text-split-stream log-json-split-stream add-dir-header skip-headers`, true, "false")
	add("logtostderr cleanup-ipvs", true, "true")
	// Nobody misses what these do: log lines go to stderr at once, one each.
	for _, name := range strings.Fields(`alsologtostderr skip-log-headers one-output`) {
		addText(r.flags, name, true)
	}
	for _, name := range strings.Fields(`log-flush-frequency log-file-max-size stderrthreshold`) {
		addText(r.flags, name, false)
	}
}

// uselessFlags lists the flags without effect that were given and might be missed.
func (r *Reader) uselessFlags() []string {
	var given []string
	for _, flag := range r.useless {
		if r.flags.Changed(flag.name) && !slices.Contains(flag.harmless, flag.given.String()) {
			given = append(given, brief("--"+flag.name+" "+flag.given.String()))
		}
	}
	return given
}
