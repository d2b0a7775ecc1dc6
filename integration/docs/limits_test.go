package docs

import (
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestLimitsAreConstants holds numbers of docs/limits.md against the code. Tests of the packages use the names of these
// constants, so that no other test fails if a value changes.
func TestLimitsAreConstants(t *testing.T) {
	words := func(path string) string { return strings.Join(strings.Fields(readPage(t, lab.Path(t, path))), " ") }
	page := words("docs/limits.md")
	for _, tt := range []struct{ says, file, code string }{
		{"262,144 connections that last", "sync/flows/counter.go", "mostConnections = 1 << 18"},
		// The kernel allows twice as much as a program asks for.
		{"up to 32 MiB of the kernel's memory", "cmd/kube-nft/daemon/watchers.go", "endingsBuffer = 16 << 20"},
		{"a limit of 2 GiB for the container", "deploy/base/daemonset.yaml", "limits: {memory: 2Gi}"},
		{"1,000,000 elements (`--namespace-quota`)", "cmd/kube-nft/config/settings.go", "NamespaceQuota: 1000000,"},
		{"ports times endpoints are 1,024 or more", "tracker/quota.go", "JointFrom = 1024"},
		{"One commit has about 1,000 elements", "tracker/fairness.go", "CommitElements = 1000"},
		{"half a second of CPU time at once", "tracker/fairness.go", "burst = 500 * time.Millisecond"},
		{"has room for 250 removals", "tracker/resolve.go", "s.left = max(s.left, mostWork/4)"},
		{"a tenth of the time in the long run", "tracker/fairness.go", "shareOfTime = 10"},
		{"the log names the namespace once a minute", "sync/loop.go", "wait: quota.Once{Interval: time.Minute}"},
		{"Up to 16 replaced endpoints of a port do not wait", "tracker/step_port.go", "replacements = 16"},
		{"is up to 65,521 elements", "nft/maglev/maglev.go", "MaxSize = 65521"},
		{"beyond 20,000 of a Service in a family 80", "tracker/quota.go", "manyFrontends = 20_000"},
		{"Beyond 10,000, each endpoint", "tracker/quota.go", "longList = 10_000"},
		{"of a list counts as ten", "tracker/quota.go", "longElements = 10"},
		{"More than 512 endpoints have equal shares", "tracker/writes.go", "MostWeighted = 512"},
		{"1,024 slots or more", "tracker/quota.go", "JointFrom = 1024"},
		{"up to 1,000 elements with each commit", "nft/services/lists.go", "stagedFrom = tracker.CommitElements"},
		{"more than 2,000 slots", "nft/services/lists/shared.go", "2*w.settings.StagedFrom"},
		{"one of 64 maps", "nft/layout/numbers.go", "AffinityMaps = 64"},
		{"131,072 entries (`--affinity-size`)", "cmd/kube-nft/config/settings.go", "AffinitySize: 131072,"},
		{"looks every 10 seconds", "sync/affinityentries/cleaner.go", "lookInterval = 10 * time.Second"},
		{"every minute on Linux before 6.16", "sync/affinityentries/cleaner.go", "uncountedInterval = time.Minute"},
		{"the next reading is a second later", "sync/affinityentries/cleaner.go", "settling = time.Second"},
		{"The log reports that once a minute", "sync/localhost/localhost.go", "full := quota.Once{Interval: time.Minute}"},
		{"is group 27502", "nft/kernel/lock.go", "lockGroup = 0x6b6e"},
		{"about 50,000 elements", "sync/loop.go", "maxPart = 50_000"},
		{"keeps 1,000 for a Service port", "sync/ejection/watcher.go", "mostOfPort = 1_000"},
		{"4,000 for a namespace", "sync/ejection/watcher.go", "mostOfNamespace = 4_000"},
		{"looks at 200,000 of each family", "sync/ejection/watcher.go", "silentBudget = 200_000"},
		{"has 1,000 endpoints left out at most", "sync/ejection/watcher.go", "leftOutNamespace = 1_000"},
	} {
		if !strings.Contains(page, tt.says) {
			t.Errorf("docs/limits.md does not say %q", tt.says)
		}
		if !strings.Contains(words(tt.file), tt.code) {
			t.Errorf("docs/limits.md says %q, and %s has no %q", tt.says, tt.file, tt.code)
		}
	}
}
