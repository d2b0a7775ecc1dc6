package sync

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

// Syncs that take longer than slowSync are logged, up to slowLines of them in a minute. A line names up to
// changedNames Service ports that changed.
const (
	slowSync     = 100 * time.Millisecond
	slowLines    = 5
	changedNames = 3
)

// A commitLog logs commits: each one at level debug, slow ones and a sum for each minute at level info. A
// cluster that changes quickly commits a thousand times a second.
type commitLog struct {
	log                                 *zap.Logger
	commits, operations, elements, slow int // in this minute
	slowest                             time.Duration
	wait                                quota.Once // of lines about namespaces that wait
}

// Delays of a namespace's changes that are longer than longWait are logged.
const longWait = time.Second

// started logs the first sync that succeeds, also if it wrote nothing, as a restart does.
func (c *commitLog) started(r *Report, lengths map[nft.Family]map[string]int) {
	elements := 0
	for _, sets := range lengths {
		for _, n := range sets {
			elements += n
		}
	}
	if r.Operations == 0 {
		c.log.Info("kube-nft started: the kernel had all Services already", zap.Int("elements", elements),
			zap.Duration("compile", r.Compile))
		return
	}
	c.log.Info("kube-nft started and programmed the Services", zap.Int("service_ports", len(r.Delta.Changed)),
		zap.Int("elements", elements), zap.Int("operations", r.Operations),
		zap.Duration("compile", r.Compile), zap.Duration("commit", r.Commit))
}

// add logs a later sync. Its time is the time of the last attempt, without earlier ones that the kernel
// refused because another program committed.
func (c *commitLog) add(r *Report) {
	took := r.Compile + r.Commit
	if r.Operations > 0 {
		c.commits++
		c.operations += r.Operations
		c.elements += r.Elements
	}
	c.slowest = max(c.slowest, took)
	if d := &r.Delta; d.Wait >= longWait && c.wait.Report("") {
		c.log.Info("a namespace exceeds its share of the time: its additions wait", zap.String("namespace", d.Slowest),
			zap.Duration("wait", d.Wait),
			zap.Int("waiting_services", d.Waiting))
	}
	level, message := zap.DebugLevel, "committed"
	switch {
	case took > slowSync:
		if c.slow++; c.slow <= slowLines {
			level = zap.InfoLevel
		}
		message = "a sync was slow"
	case r.Operations == 0:
		return
	}
	entry := c.log.Check(level, message)
	if entry == nil {
		return
	}
	names, changed := changedPorts(&r.Delta)
	fields := []zap.Field{zap.Int("changed", changed), zap.Strings("service_ports", names), zap.Bool("full", r.Full),
		zap.Int("operations", r.Operations), zap.Int("elements", r.Elements),
		zap.Duration("compile", r.Compile), zap.Duration("commit", r.Commit)}
	if took > slowSync {
		fields = append(fields, zap.String("longest", slowestPart(r)))
	}
	entry.Write(fields...)
}

// slowestPart says which part of a sync took longest.
func slowestPart(r *Report) string {
	switch longest := max(r.Compile, r.Commit); {
	case longest == r.Commit:
		return "commit"
	case r.Full:
		return "reading the tables back, and compile"
	}
	return "compile"
}

// changedPorts returns the names of the first Service ports that a delta changes, and the number
// of all.
func changedPorts(d *tracker.Delta) (names []string, n int) {
	var first []tracker.PortID // without sorting all: there are tens of thousands at a start
	add := func(id tracker.PortID) {
		i, _ := slices.BinarySearchFunc(first, id, tracker.PortID.Compare)
		if i < changedNames {
			first = slices.Insert(first, i, id)
			first = first[:min(len(first), changedNames)]
		}
	}
	for _, port := range d.Changed {
		add(port.ID)
	}
	for id := range d.Removed {
		add(id)
	}
	return words.Strings(first), len(d.Changed) + len(d.Removed)
}

// endMinute logs the sums of a minute. Slow syncs without a commit count if some of them were not logged.
func (c *commitLog) endMinute() {
	if c.commits > 0 || c.slow > slowLines {
		c.log.Info("kube-nft synced in the last minute", zap.Int("commits", c.commits), zap.Int("operations", c.operations),
			zap.Int("elements", c.elements), zap.Duration("slowest", c.slowest), zap.Int("slow", c.slow))
	}
	c.commits, c.operations, c.elements, c.slow, c.slowest = 0, 0, 0, 0, 0
}
