package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
)

// An Error is a setting that cannot be meant.
type Error struct {
	Setting string // the flag, or the file and the field
	Value   string // as it was given; empty if that says nothing
	Reason  string // what is expected
}

// Error returns one line: the setting, its value and what is expected.
func (e *Error) Error() string {
	setting := brief(e.Setting)
	if e.Value != "" {
		setting += " " + brief(e.Value)
	}
	return setting + ": " + brief(e.Reason)
}

// longest is about how many bytes of a text from outside are shown.
const longest = 200

// brief makes a text fit for a line of a log: what cannot be printed is escaped as in Go,
// and what is too long is cut.
func brief(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		if b.Len() > longest {
			return b.String() + "…"
		}
	}
	return b.String()
}

// A Reader reads the settings of one command line and the file that it names.
type Reader struct {
	flags   *pflag.FlagSet
	file    string
	given   values // defaults and flags
	aliases []alias
	useless []useless
}

// NewReader declares the flags that are always there, in f, which is to be parsed before
// Read is called.
func NewReader(f *pflag.FlagSet) *Reader {
	r := &Reader{flags: f, given: defaults()}
	f.StringVar(&r.file, "config", "", "read settings from this file, in the format of kube-proxy's (KubeProxyConfiguration); flags win over it; if its settings change, kube-nft exits with code 3")
	r.given.addFlags(f)
	f.StringVar(&r.given.mode, "proxy-mode", modeNFTables, "")
	f.Lookup("proxy-mode").Hidden = true
	r.addAlias("iptables-min-sync-period", "min-sync-period", nil)
	r.addAlias("iptables-masquerade-bit", "masquerade-bit", nil)
	r.addUseless()
	return r
}

// Read works out the settings from defaults, file and flags. A setting that cannot be meant
// is an *Error; other errors are of files and of the system.
func (r *Reader) Read() (*Config, error) {
	if err := r.resolveAliases(); err != nil {
		return nil, err
	}
	reading := &reading{values: r.given, flags: r.flags, file: r.file, fields: make(map[string]string)}
	if useless := r.uselessFlags(); len(useless) > 0 {
		reading.notices = append(reading.notices, "no effect in kube-nft: "+strings.Join(useless, ", "))
	}
	if r.file != "" {
		document, err := load(r.file)
		if err != nil {
			return nil, err
		}
		if len(document.useless) > 0 {
			reading.notices = append(reading.notices, r.file+": no effect in kube-nft: "+strings.Join(document.useless, ", "))
		}
		reading.read(document)
	}
	return reading.resolve()
}

// load reads a file. Its path is named in every error.
func load(file string) (*document, error) {
	content, err := os.ReadFile(file)
	if pathError := (*fs.PathError)(nil); errors.As(err, &pathError) {
		return nil, fmt.Errorf("--config %s: %w; expected a file of kind %s", file, pathError.Err, proxyKind)
	}
	if err != nil {
		return nil, fmt.Errorf("--config %s: %w", file, err)
	}
	return parse(file, content)
}
