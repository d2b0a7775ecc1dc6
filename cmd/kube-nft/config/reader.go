package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kube-nft/kube-nft/nft/words"
)

// A Reader reads the settings of one command line and the file that it names.
type Reader struct {
	flags *pflag.FlagSet
	file  string
	given *document // defaults and flags
	proxy proxyFlags
	shown []*pflag.FlagSet
}

// NewReader declares the flags in f. The caller parses f before it calls Read.
func NewReader(f *pflag.FlagSet) *Reader {
	r := &Reader{flags: f, given: defaults(), proxy: proxyFlags{flags: f}, shown: []*pflag.FlagSet{f}}
	f.StringVar(&r.file, "config", "",
		"read settings from this file, in the format of kube-proxy's (KubeProxyConfiguration); flags override it; if its "+
			"settings change, kube-nft exits with code 3")
	r.given.addFlags(f)
	r.proxy.declare()
	return r
}

// Show adds flags of the program to those that Flags returns.
func (r *Reader) Show(f *pflag.FlagSet) { r.shown = append(r.shown, f) }

// Flags returns the values of all flags by name, as they are on the command line.
func (r *Reader) Flags() map[string]string {
	values := make(map[string]string)
	for _, f := range r.shown {
		f.VisitAll(func(flag *pflag.Flag) { values[flag.Name] = flag.Value.String() })
	}
	return values
}

// Read works out the settings from defaults, file and flags. An invalid setting is an *Error; other
// errors concern files and the system.
func (r *Reader) Read() (*Config, error) {
	if err := r.proxy.resolveAliases(); err != nil {
		return nil, err
	}
	reading := r.reading()
	if useless := r.proxy.useless(); len(useless) > 0 {
		reading.notices = append(reading.notices, "no effect in kube-nft: "+strings.Join(useless, ", "))
	}
	if r.file != "" {
		content, err := os.ReadFile(r.file)
		if err != nil {
			return nil, fmt.Errorf("--config %s: %w; expected a file of kind %s", r.file, words.Cause(err), proxyKind)
		}
		document, err := parse(r.file, content)
		if err != nil {
			return nil, err
		}
		reading.merge(document)
	} else {
		reading.mergeGates(nil)
	}
	return reading.resolve()
}
