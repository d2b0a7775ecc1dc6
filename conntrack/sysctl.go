package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft/words"
)

// maxEntries is the largest table size that Apply sets: 2^20 entries.
const maxEntries = 1 << 20

// bucketEntries is how many entries each hash bucket should hold at most.
const bucketEntries = 4

// Settings are the connection tracking sysctls to set. A zero field leaves its sysctl as
// it is. Source: KubeProxyConfiguration.conntrack.
type Settings struct {
	// The table can hold MaxPerCore times the number of CPUs entries, at least Min and at most
	// 1048576. If MaxPerCore is 0, the table keeps its size, whatever Min is.
	MaxPerCore, Min int32

	// How long an entry lives without a packet, in whole seconds.
	TCPEstablished time.Duration // an established TCP connection
	TCPCloseWait   time.Duration // a TCP connection of which one side has closed
	UDP            time.Duration // a UDP flow without a reply
	UDPStream      time.Duration // a UDP flow that goes both ways

	// TCPBeLiberal accepts TCP packets outside the window instead of calling them invalid.
	TCPBeLiberal bool
}

// Usage returns how many entries the connection tracking table of this network namespace has, and how
// many it may have; root is usually /proc/sys.
func Usage(root string) (entries, limit int64, err error) {
	for name, value := range map[string]*int64{"count": &entries, "max": &limit} {
		name = "net.netfilter.nf_conntrack_" + name
		if *value, err = readSysctl(root, name); err != nil {
			return 0, 0, fmt.Errorf("sysctl %s: %w", name, err)
		}
	}
	return entries, limit, nil
}

// A Sysctl is one setting and what became of it.
type Sysctl struct {
	Name       string // as sysctl(8) writes it
	Want, Have int64  // Have is the value before; 0 if it could not be read
	Changed    bool   // Want was written
	Err        error  // why the value is not Want; exact about name, values and remedy
}

// Apply sets what settings ask for below root, usually /proc/sys, on a node with cpus CPUs. It
// writes only what differs and goes on after an error; no error needs to be fatal. It raises the
// hash table to a quarter of the entries and never shrinks it.
func Apply(settings Settings, root string, cpus int) []Sysctl {
	var done []Sysctl
	set := func(name string, want int64, keep func(have, want int64) bool) {
		if want > 0 {
			done = append(done, apply(root, name, want, keep))
		}
	}
	entries := settings.entries(cpus)
	set("net.netfilter.nf_conntrack_max", entries, equal)
	set("net.netfilter.nf_conntrack_buckets", entries/bucketEntries, atLeast)
	set("net.netfilter.nf_conntrack_tcp_timeout_established", seconds(settings.TCPEstablished), equal)
	set("net.netfilter.nf_conntrack_tcp_timeout_close_wait", seconds(settings.TCPCloseWait), equal)
	if settings.TCPBeLiberal {
		set("net.netfilter.nf_conntrack_tcp_be_liberal", 1, equal)
	}
	set("net.netfilter.nf_conntrack_udp_timeout", seconds(settings.UDP), equal)
	set("net.netfilter.nf_conntrack_udp_timeout_stream", seconds(settings.UDPStream), equal)
	return done
}

// Account makes the kernel count packets and bytes, and note when flows begin and end, for flows that begin from now
// on. Each packet of such a flow then costs two additions. root is usually /proc/sys.
func Account(root string) []Sysctl {
	return []Sysctl{
		apply(root, "net.netfilter.nf_conntrack_acct", 1, equal),
		apply(root, "net.netfilter.nf_conntrack_timestamp", 1, equal),
	}
}

// Restore sets a changed setting back to what it was, unless another program has changed it since.
func (s *Sysctl) Restore(root string) error {
	changed := func(have, _ int64) bool { return have != s.Want }
	return apply(root, s.Name, s.Have, changed).Err
}

// entries returns the wanted size of the table, 0 to leave it.
func (s *Settings) entries(cpus int) int64 {
	if s.MaxPerCore <= 0 {
		return 0
	}
	return min(max(int64(s.Min), int64(s.MaxPerCore)*int64(cpus)), maxEntries)
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

func equal(have, want int64) bool   { return have == want }
func atLeast(have, want int64) bool { return have >= want }

// apply sets one sysctl unless keep accepts its present value.
func apply(root, name string, want int64, keep func(have, want int64) bool) Sysctl {
	s := Sysctl{Name: name, Want: want}
	var err error
	if s.Have, err = readSysctl(root, name); err == nil && !keep(s.Have, want) {
		if err = os.WriteFile(sysctlFile(root, name), []byte(strconv.FormatInt(want, 10)), 0); err != nil {
			err = fmt.Errorf("have %d: %w", s.Have, words.Cause(err))
		}
		s.Changed = err == nil
	}
	if err != nil {
		s.Err = fmt.Errorf("sysctl %s: want %d, %w; %s", name, want, err, s.remedy(err))
	}
	return s
}

// readSysctl returns the value of a sysctl. The error does not name it.
func readSysctl(root, name string) (int64, error) {
	text, err := os.ReadFile(sysctlFile(root, name))
	if err != nil {
		return 0, fmt.Errorf("cannot be read: %w", words.Cause(err))
	}
	value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("have %q, which is not a number", text)
	}
	return value, nil
}

func sysctlFile(root, name string) string {
	return filepath.Join(root, strings.ReplaceAll(name, ".", "/"))
}

// remedy says how an administrator can mend err.
func (s *Sysctl) remedy(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "load the kernel module nf_conntrack (modprobe nf_conntrack)"
	}
	return fmt.Sprintf("set it on the node (sysctl -w %s=%d) or in an init container that may write /proc/sys",
		s.Name, s.Want)
}

// OnlineCPUs returns how many CPUs are online according to path, usually /proc/stat. A container limited to some CPUs
// still counts all CPUs of the node: the table belongs to the node.
func OnlineCPUs(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("count online CPUs: %w", err)
	}
	return strings.Count(string(text), "\ncpu"), nil // one line each, below the one of all
}
