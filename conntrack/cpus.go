package conntrack

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// OnlineCPUs returns how many CPUs are online according to path, usually
// /sys/devices/system/cpu/online. A container limited to some CPUs still counts all of the
// node's: the table is the node's.
func OnlineCPUs(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("count online CPUs: %w", err)
	}
	n, err := countCPUs(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("count online CPUs: %s: %w", path, err)
	}
	return n, nil
}

// maxCPU is above any CPU number that Linux can be built for.
const maxCPU = 1 << 16

// countCPUs counts the members of a list such as "0-3,8,10-11": ranges in ascending order
// that do not overlap, as the kernel prints it.
func countCPUs(list string) (n int, err error) {
	next := uint64(0) // the smallest number that may follow
	for item := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.ParseUint(low, 10, 64)
		last, err2 := strconv.ParseUint(high, 10, 64)
		if err1 != nil || err2 != nil || first < next || last < first || last >= maxCPU {
			return 0, fmt.Errorf("%q in %q is not a CPU or an ascending range of CPUs", item, list)
		}
		n += int(last - first + 1)
		next = last + 1
	}
	return n, nil
}
