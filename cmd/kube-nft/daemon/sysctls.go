package daemon

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/conntrack"
)

// Paths of kernel settings. Services work without them, so no error here is fatal.
const (
	sysctlRoot = "/proc/sys"
	onlineCPUs = "/proc/stat"
	oomScore   = "/proc/self/oom_score_adj"
)

// limitMemory lets Go collect garbage more often when the process reaches three quarters of the limit of its container.
// The rest is for the tables, which the kernel counts for the container as well. The environment variable GOMEMLIMIT
// overrides it.
func limitMemory(container memlimit.Provider, log *zap.Logger) {
	if _, err := memlimit.Set(memlimit.WithProvider(container), memlimit.WithRatio(0.75)); err != nil {
		log.Info("cannot find the memory limit of the container; GOMEMLIMIT can set one for kube-nft", zap.Error(err))
	}
}

// setScore sets how readily the kernel kills this process when memory runs out.
func setScore(score int, log *zap.Logger) {
	if err := os.WriteFile(oomScore, []byte(strconv.Itoa(score)), 0); err != nil {
		logScore(oomScore, score, err, log)
	}
}

// logScore logs that the score was refused. A protecting score that the kubelet has given is as
// good.
func logScore(path string, score int, refusal error, log *zap.Logger) {
	text, _ := os.ReadFile(path)
	if have, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && have < 0 {
		log.Info("cannot set oom_score_adj; its present value protects kube-nft as well", zap.Int("want", score),
			zap.Int("have", have), zap.Error(refusal))
		return
	}
	log.Warn("cannot set oom_score_adj: the kernel may kill this process when memory runs out",
		zap.Int("oom_score_adj", score), zap.Error(refusal))
}

// Prepare does what needs more privileges than the daemon has, and nothing else. It logs what it
// cannot set: Services work without it.
func Prepare(ctx context.Context, c *config.Config, stderr io.Writer) error {
	log := c.Log(stderr)
	c.LogNotices(log)
	if c.Shadow { // it changes nothing
		return nil
	}
	kernel, _, err := openKernel(ctx) // the probe makes the kernel load connection tracking
	if err != nil {
		return err
	}
	kernel.Close()
	tuneConntrack(c, log)
	return nil
}

func tuneConntrack(c *config.Config, log *zap.Logger) {
	cpus, err := conntrack.OnlineCPUs(onlineCPUs)
	if err != nil {
		log.Warn("kube-nft does not set the conntrack limits", zap.Error(err))
		return
	}
	sysctls := conntrack.Apply(c.Conntrack, sysctlRoot, cpus)
	if c.FlowMetrics {
		sysctls = append(sysctls, conntrack.Account(sysctlRoot)...)
	}
	for _, err := range logSysctls(sysctls, log) {
		log.Warn("cannot set a sysctl", zap.Error(err))
	}
}

// logSysctls logs what was set, and returns why other sysctls were not.
func logSysctls(list []conntrack.Sysctl, log *zap.Logger) (failed []error) {
	for _, sysctl := range list {
		switch {
		case sysctl.Err != nil:
			failed = append(failed, sysctl.Err)
		case sysctl.Changed:
			log.Info("kube-nft set a sysctl", zap.String("name", sysctl.Name), zap.Int64("value", sysctl.Want),
				zap.Int64("before", sysctl.Have))
		}
	}
	return failed
}
