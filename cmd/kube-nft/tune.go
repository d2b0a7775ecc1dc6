package main

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"

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
	o.tuneConntrack(log)
	o.tuneOOM(log)
}

// tuneOOM sets how likely the kernel is to end this process when memory runs out.
func (o *options) tuneOOM(log *zap.Logger) {
	if err := os.WriteFile(oomScore, []byte(strconv.Itoa(o.OOMScoreAdj)), 0); err != nil {
		o.noteScore(oomScore, err, log)
	}
}

// noteScore logs that the score was refused. Where the kubelet has given one already that
// protects, that is as good.
func (o *options) noteScore(path string, refusal error, log *zap.Logger) {
	if have, err := readScore(path); err == nil && have < 0 {
		log.Info("oom_score_adj stays as it was given to this process", zap.Int("want", o.OOMScoreAdj), zap.Int("have", have), zap.Error(refusal))
		return
	}
	log.Warn("the kernel may end this process when memory runs out", zap.Int("oom_score_adj", o.OOMScoreAdj), zap.Error(refusal))
}

func readScore(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// prepare does what needs more privileges than the daemon has, and nothing else. What cannot
// be set is logged: Services work without it.
func (o *options) prepare(ctx context.Context, stderr io.Writer) error {
	log := o.newLog(stderr)
	o.notices(log)
	kernel, _, err := openKernel(ctx) // which makes the kernel load connection tracking
	if err != nil {
		return err
	}
	kernel.Close()
	o.tuneConntrack(log)
	return nil
}

func (o *options) tuneConntrack(log *zap.Logger) {
	cpus, err := conntrack.OnlineCPUs(onlineCPUs)
	if err != nil {
		log.Warn("connection tracking is not sized", zap.Error(err))
		return
	}
	for _, sysctl := range conntrack.Apply(o.Conntrack, sysctlRoot, cpus) {
		switch {
		case sysctl.Err != nil:
			log.Warn("sysctl", zap.Error(sysctl.Err))
		case sysctl.Changed:
			log.Info("sysctl", zap.String("name", sysctl.Name), zap.Int64("value", sysctl.Want), zap.Int64("before", sysctl.Have))
		}
	}
}
