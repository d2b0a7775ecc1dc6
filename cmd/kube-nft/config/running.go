package config

import (
	"maps"
	"path/filepath"
	"reflect"
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-nft/kube-nft/tracker/informer"
)

// Running describes a kube-nft process that runs.
type Running struct {
	Version  string    `json:"version"`
	Commit   string    `json:"commit,omitempty"`
	Started  time.Time `json:"started"`
	LogLevel string    `json:"logLevel"` // of this moment
	// Changed are the settings that are not the defaults, by flag.
	Changed map[string]string `json:"changed"`
	// Server is the URL of the API server; empty with manifests.
	Server string `json:"server,omitempty"`
	// Settings are all settings, as a file for --config. Paths are absolute, and the node has a name.
	Settings string `json:"settings"`
	// Root is where the files of that process are, if it has a file system of its own; empty if not.
	Root string `json:"-"`
}

// Running describes this process, which has used these settings since started.
func (c *Config) Running(started time.Time) (*Running, error) {
	d := c.effective
	d.proxy.HostnameOverride = c.NodeName
	for _, path := range []*string{&d.own.Manifests, &d.proxy.ClientConnection.Kubeconfig} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, err
		}
		*path = absolute
	}
	settings, err := (&Config{effective: d}).YAML()
	if err != nil {
		return nil, err
	}
	changed, err := c.changed()
	if err != nil {
		return nil, err
	}
	server := ""
	if c.Manifests == "" {
		if connection, err := c.Connection.Config(); err == nil { // the daemon has one that was right at its start
			server = connection.Host
		}
	}
	build := Build()
	return &Running{
		Version: build.GitVersion, Commit: build.GitCommit, Started: started.UTC().Truncate(time.Second),
		LogLevel: c.LogLevel.String(), Changed: changed, Server: server, Settings: string(settings),
	}, nil
}

// changed lists the settings that differ from what no flag and no file would give.
func (c *Config) changed() (map[string]string, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	plain, err := NewReader(flags).Read()
	if err != nil {
		return nil, err
	}
	changed := make(map[string]string)
	for _, s := range settings {
		value := c.effective.at(s.field)
		if s.flag == "v" || s.flag == "logging-format" ||
			reflect.DeepEqual(value.Interface(), plain.effective.at(s.field).Interface()) {
			continue // ours replace these two
		}
		if value.Kind() == reflect.Map {
			changed[s.flag] = gatesText(c.effective.proxy.FeatureGates)
			continue
		}
		changed[s.flag] = valueText(value)
	}
	return changed, nil
}

// ReadOver is Read for a command beside a running kube-nft: without --config, that one's settings take the place of
// the file's, and paths lead to its files. Without a running one it is Read.
func (r *Reader) ReadOver(running *Running) (*Config, error) {
	if running == nil || r.file != "" {
		return r.Read()
	}
	if err := r.proxy.resolveAliases(); err != nil {
		return nil, err
	}
	const origin = "the running kube-nft"
	document, err := parse(origin, []byte(running.Settings))
	if err != nil {
		return nil, err
	}
	reading := r.reading()
	reading.file = origin
	document.proxy.Mode = modeNFTables // what a daemon after the shadow would have
	reading.merge(document)
	c, err := reading.resolve()
	if err != nil {
		return nil, err
	}
	c.File = ""
	if running.Root != "" {
		c.use(running, r.flags)
	}
	return c, nil
}

// use makes paths in the settings of a running kube-nft, whose file system is not this process's, lead to its files.
// Flags of this process name its own files.
func (c *Config) use(running *Running, flags *pflag.FlagSet) {
	if c.Manifests != "" && !flags.Changed("manifests") {
		c.Manifests = filepath.Join(running.Root, c.Manifests)
	}
	if !flags.Changed("host-proc") { // this process sees that one: its own /proc shows the node's processes
		c.HostProc = defaults().own.HostProc
	}
	if !flags.Changed("kubeconfig") {
		c.Connection.Process = &informer.Process{Root: running.Root, Server: running.Server}
	}
}

// reading returns what defaults and flags give.
func (r *Reader) reading() *reading {
	read := &reading{document: *r.given, flags: r.flags, file: r.file, fields: make(map[string]string)}
	read.proxy.FeatureGates = maps.Clone(r.given.proxy.FeatureGates)
	return read
}
