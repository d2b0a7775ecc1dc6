package inspect

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// Facts are what a bug report needs to know of a node, and no other command prints.
type Facts struct {
	metav1.TypeMeta
	Kernel KernelFacts `json:"kernel"`
	// Modules are the loaded modules of netfilter and IPVS; the kernel does not list what is built in.
	Modules []string `json:"modules"`
	// Sysctls are the kernel parameters that concern Services and connection tracking, by name.
	Sysctls map[string]string `json:"sysctls"`
	// Conntrack has the kernel's counters of connection tracking, the sums over all CPUs, by name.
	Conntrack map[string]uint64 `json:"conntrack"`
	// Metrics are those of the daemon, in the text format of Prometheus.
	Metrics string `json:"metrics,omitempty"`
	// Ruleset is kube-nft's tables in the kernel, as nft prints them, without elements that name clients.
	Ruleset string `json:"ruleset,omitempty"`
	// Problems are why something is missing.
	Problems []string `json:"problems,omitempty"`
}

// KernelFacts name the kernel.
type KernelFacts struct {
	Release string `json:"release"`
	Version string `json:"version"`
	Machine string `json:"machine"`
	CPUs    int    `json:"cpus"`
}

func newFacts() *cobra.Command {
	var f output.Form
	var clients bool
	cmd := &cobra.Command{
		Use:   "facts",
		Short: "Print what a bug report needs to know of this node",
		Long: `facts prints the kernel's version, modules and parameters that concern Services, the counters of
connection tracking, the daemon's metrics, and kube-nft's tables in the kernel as nft text.

The tables are without source ranges, which name clients, unless you give --clients. Entries of
session affinity are in kube-nft get affinity alone.`,
		Example: "  kube-nft facts\n  kube-nft facts -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.Write(cmd.OutOrStdout(), readFacts(cmd.Context(), "/proc", clients))
		},
	}
	f.AddFlag(cmd, output.YAML, output.JSON)
	cmd.Flags().BoolVar(&clients, "clients", false, "with source ranges, which name clients")
	return cmd
}

// readFacts reads what it can; proc is usually /proc.
func readFacts(ctx context.Context, proc string, clients bool) *Facts {
	f := &Facts{TypeMeta: output.Kind("Facts"), Modules: []string{}}
	note := func(what string, err error) {
		if err != nil {
			f.Problems = append(f.Problems, fmt.Sprintf("%s: %v", what, err))
		}
	}
	var name unix.Utsname
	note("kernel", unix.Uname(&name))
	f.Kernel.Release, f.Kernel.Version = unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Version[:])
	f.Kernel.Machine = unix.ByteSliceToString(name.Machine[:])
	var cpus unix.CPUSet
	note("CPUs", unix.SchedGetaffinity(0, &cpus))
	f.Kernel.CPUs = cpus.Count()
	text, err := os.ReadFile(filepath.Join(proc, "modules"))
	note("modules", err)
	f.Modules = append(f.Modules, ownModules(string(text))...)
	f.Sysctls = readSysctls(filepath.Join(proc, "sys"))
	text, err = os.ReadFile(filepath.Join(proc, "thread-self/net/stat/nf_conntrack"))
	note("counters of connection tracking", err)
	f.Conntrack = sumPerCPU(string(text))
	f.Metrics, err = peer.Metrics(ctx)
	note("metrics", err)
	i, err := look(ctx)
	if note("ruleset", err); err != nil {
		return f
	}
	defer i.close()
	tables := make(nft.Tables, len(i.tables))
	for family, table := range i.tables {
		tables[family] = table.Table
		if !clients {
			tables[family] = withoutClients(table.Table)
		}
	}
	f.Ruleset = tables.Text()
	return f
}

// withoutClients returns a table without the elements of source ranges. What packets have added is not in the text.
func withoutClients(t *nft.Table) *nft.Table {
	other := *t
	other.Sets = maps.Clone(t.Sets)
	for name, set := range other.Sets {
		if strings.HasPrefix(name, layout.RangesPrefix) {
			other.Sets[name] = &nft.Elements{Set: set.Set}
		}
	}
	return &other
}

// ownModules lists the modules of netfilter, of the bridge's netfilter and of IPVS; text is /proc/modules.
func ownModules(text string) (names []string) {
	prefixes := []string{"nf_", "nft_", "nfnetlink", "xt_", "x_tables", "ip_tables", "ip6_tables", "iptable_", "ip6table_",
		"ipt_", "ip6t_", "ip_set", "ip_vs", "br_netfilter"}
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, " ")
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// sysctlPatterns are the kernel parameters of Facts, as files below /proc/sys.
var sysctlPatterns = []string{
	"net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/vs/*",
	"net/ipv4/conf/all/*", "net/ipv4/conf/default/*", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/default/forwarding",
	"net/ipv6/conf/all/disable_ipv6", "net/bridge/*", "net/netfilter/*", "net/core/netdev_max_backlog",
	"net/core/somaxconn", "fs/file-nr", "user/max_user_namespaces",
}

// maxSysctl bounds the value of a parameter, in bytes: a list of reserved ports may be long.
const maxSysctl = 256

// readSysctls returns the parameters that exist, by name as sysctl(8) writes it.
func readSysctls(root string) map[string]string {
	values := make(map[string]string)
	for _, pattern := range sysctlPatterns {
		paths, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are well formed
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil { // a directory, or one that only root may read
				continue
			}
			name := strings.ReplaceAll(strings.TrimPrefix(path, root+"/"), "/", ".")
			value := strings.Join(strings.Fields(string(text)), " ")
			values[name] = value[:min(len(value), maxSysctl)]
		}
	}
	return values
}

// sumPerCPU adds up the columns of a file below /proc/net/stat: names, then a line of hexadecimal numbers for each CPU.
func sumPerCPU(text string) map[string]uint64 {
	sums := make(map[string]uint64)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	names := strings.Fields(lines[0])
	for _, line := range lines[1:] {
		for i, word := range strings.Fields(line) {
			n, err := strconv.ParseUint(word, 16, 64)
			if err != nil || i >= len(names) {
				continue
			}
			if names[i] == "entries" { // the same number on each CPU
				sums[names[i]] = n
				continue
			}
			sums[names[i]] += n
		}
	}
	return sums
}
