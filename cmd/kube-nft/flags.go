package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// options are the settings of the command line and of the file that it names. Config is set
// by complete.
type options struct {
	*config.Config
	reader *config.Reader
}

func (o *options) addFlags(f *pflag.FlagSet) {
	o.reader = config.NewReader(f)
	o.reader.AddHealthFlags()
	o.reader.AddConntrackFlags()
	o.reader.AddOOMFlag()
	o.reader.AddLocalhostFlag()
	o.reader.AddCountersFlag()
	o.reader.AddSyncPeriodFlag()
	o.reader.AddOwnershipFlag()
	o.reader.AddTakeoverFlag()
}

// complete works out the settings.
func (o *options) complete() (err error) {
	o.Config, err = o.reader.Read()
	return err
}

// notices logs what was given in vain.
func (o *options) notices(log *zap.Logger) {
	for _, notice := range o.Notices {
		log.Warn("configuration", zap.String("notice", notice))
	}
}

// errConfigChanged ends the daemon so that it is started again.
var errConfigChanged = errors.New("the configuration file changed")

// followConfig returns errConfigChanged when the file gives other settings, and nil when
// ctx ends.
func (o *options) followConfig(ctx context.Context, log *zap.Logger) error {
	problem := func(err error) {
		log.Error("configuration", zap.String("file", o.File), zap.Error(err))
	}
	if !o.reader.Follow(ctx, o.Config, problem) {
		return nil
	}
	log.Info("ending, to be started with the changed configuration", zap.String("file", o.File))
	return errConfigChanged
}

// showConfig prints the settings as a file for --config.
func (o *options) showConfig(w io.Writer) error {
	text, err := o.YAML()
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

// writeConfig writes the settings to a file for --config.
func (o *options) writeConfig(path string) error {
	text, err := o.YAML()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

// trackerConfig and rulesetConfig hand the settings on.
func (o *options) trackerConfig() tracker.Config {
	return tracker.Config{
		NodeName:         o.NodeName,
		NodeAddresses:    o.NodeAddresses,
		ServiceProxyName: o.ServiceProxyName,
		ServiceCIDRs:     o.ServiceCIDRs,
		Clock:            time.Now,
	}
}

func (o *options) rulesetConfig(families []nft.Family) nft.Config {
	all := make(map[nft.Family]bool)
	for _, family := range tracker.Families {
		all[nft.Family(family)] = o.NodePorts.All(family)
	}
	return nft.Config{
		Families:         families,
		MasqueradeAll:    o.MasqueradeAll,
		MasqueradeBit:    o.MasqueradeBit,
		Pods:             o.Pods,
		AllNodePorts:     all,
		Localhost:        o.LocalhostNodePorts,
		AffinitySize:     o.AffinitySize,
		Counters:         o.ConnectionCounters,
		EndpointCounters: o.EndpointCounters,
	}
}
