package main

import (
	"os"
	"strconv"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
)

// Where the kernel's settings are.
const (
	sysctlRoot = "/proc/sys"
	onlineCPUs = "/sys/devices/system/cpu/online"
	oomScore   = "/proc/self/oom_score_adj"
)

// tune sets what the options ask of the kernel besides rules. Services work without it, so
// that nothing here is fatal.
func (o *options) tune(log *zap.Logger) {
	cpus, err := conntrack.OnlineCPUs(onlineCPUs)
	if err != nil {
		log.Warn("connection tracking is not sized", zap.Error(err))
	} else {
		o.tuneConntrack(cpus, log)
	}
	if err := os.WriteFile(oomScore, []byte(strconv.Itoa(o.OOMScoreAdj)), 0); err != nil {
		log.Warn("the kernel may end this process when memory runs out", zap.Int("oom_score_adj", o.OOMScoreAdj), zap.Error(err))
	}
}

func (o *options) tuneConntrack(cpus int, log *zap.Logger) {
	for _, sysctl := range conntrack.Apply(o.Conntrack, sysctlRoot, cpus) {
		switch {
		case sysctl.Err != nil:
			log.Warn("sysctl", zap.Error(sysctl.Err))
		case sysctl.Changed:
			log.Info("sysctl", zap.String("name", sysctl.Name), zap.Int64("value", sysctl.Want), zap.Int64("before", sysctl.Have))
		}
	}
}
