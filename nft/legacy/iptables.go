package legacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// replaceAttempts is how often a table is read again, after a pause, because others write to it.
// Each attempt takes milliseconds, as does an iptables program. Programs that honour the lock cause
// no further attempt.
const (
	replaceAttempts = 200
	replacePause    = 5 * time.Millisecond
)

// errBusy is the error after the last attempt.
var errBusy = errors.New("other programs keep changing it; nothing was changed; stop kube-proxy and try again")

// errCounters means that a program without the lock changed the table between its replacement and the
// return of its counters.
var errCounters = errors.New("removed, but the counters of the other rules were reset")

// eachXtable calls do with each of these tables that exists, under the lock if lockFile is set. It goes on after an
// error. Any other table must not be requested: the kernel would create it, and its hooks cost every packet something.
func eachXtable(ctx context.Context, f nft.Family, tables []string, lockFile string,
	do func(s *socket, table string) error) error {
	exist, err := os.ReadFile(filepath.Join("/proc/thread-self/net", layoutOf(f).names))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the module is not loaded
	}
	tables = slices.DeleteFunc(slices.Clone(tables), func(table string) bool {
		return !slices.Contains(strings.Fields(string(exist)), table)
	})
	if err != nil || len(tables) == 0 {
		return err
	}
	if lockFile != "" {
		release, err := lock(ctx, lockFile)
		if err != nil {
			return err
		}
		defer release()
	}
	s, err := openSocket(f)
	if err != nil {
		return err
	}
	defer s.close()
	for _, table := range tables {
		if tableErr := do(s, table); tableErr != nil {
			err = errors.Join(err, fmt.Errorf("%s %s %s: %w", Xtables, f.NFT(), table, tableErr))
		}
	}
	return err
}

// A xtable is a snapshot of a table of ip_tables or ip6_tables.
type xtable struct {
	hooks hookTable
	data  []byte
	rules *blob
}

// read takes the table from the kernel.
func (s *socket) read(table string) (*xtable, error) {
	hooks, data, err := s.snapshot(table)
	for range replaceAttempts {
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
		hooks, data, err = s.snapshot(table)
	}
	if err != nil {
		return nil, err
	}
	rules, err := decodeBlob(s.layout, hooks, data)
	if err != nil {
		return nil, fmt.Errorf("unknown format: %w; remove kube-proxy's rules by hand, on the node: %s",
			err, s.byHand(table))
	}
	return &xtable{hooks, data, rules}, nil
}

// byHand returns the commands of iptables-legacy that remove kube-proxy's chains from a table, the
// rules in them and the rules that lead to them.
func (s *socket) byHand(table string) string {
	program := "iptables-legacy"
	if s.layout == layoutOf(nft.IP6) {
		program = "ip6tables-legacy"
	}
	return fmt.Sprintf(
		`%s-save -c -t %s | grep -Ev '(^:|-A |-[jg] )KUBE-(SERVICES|EXTERNAL-SERVICES|NODEPORTS|POSTROUTING|MARK-MASQ|FORWARD|PROXY-FIREWALL|PROXY-CANARY|(SVC|SVL|SEP|FW|EXT|XLB)-[A-Z2-7]{16})( |$)' | %s-restore -c -T %s`,
		program, table, program, table)
}

// clean removes kube-proxy's share from a table in one replacement. The counters of the rules that
// stay go on from their values.
func (s *socket) clean(ctx context.Context, table string) error {
	for range replaceAttempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := s.tryClean(table)
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		retry.Pause(ctx, replacePause)
	}
	return errBusy
}

// tryClean returns EAGAIN if the table changed between reading and writing. The kernel notices a
// changed number of rules; tryClean compares the rest at the last moment.
func (s *socket) tryClean(table string) error {
	have, err := s.read(table)
	if err != nil {
		return err
	}
	rs := have.rules.ruleset(table)
	removal := newRemoval(rs)
	if removal.empty() {
		return nil
	}
	rest := have.rules.without(removal)
	hooks, data, err := rest.encode()
	if err != nil {
		return err
	}
	now, err := s.read(table)
	if err != nil {
		return err
	}
	if !have.equal(now) {
		return unix.EAGAIN
	}
	counters, err := s.replace(table, have.hooks.entries, hooks, data)
	if err != nil {
		return err
	}
	var kept []byte
	for _, i := range rest.order() {
		kept = append(kept, counters[i*counterLen:(i+1)*counterLen]...)
	}
	if err := s.addCounters(table, kept); err != nil {
		return fmt.Errorf("%w: %w", errCounters, err)
	}
	return nil
}

// equal reports whether two snapshots hold the same rules, whatever their counters.
func (x *xtable) equal(y *xtable) bool {
	if x.hooks != y.hooks || len(x.data) != len(y.data) {
		return false
	}
	l := x.rules.layout
	for off := 0; off < len(x.data); {
		next := off + entry{data: x.data[off:]}.field(l.target+2)
		at := off + l.counters
		if !bytes.Equal(x.data[off:at], y.data[off:at]) ||
			!bytes.Equal(x.data[at+counterLen:next], y.data[at+counterLen:next]) {
			return false
		}
		off = next
	}
	return true
}

// LockFile is the file that iptables programs lock while they change a table of ip_tables, because
// the kernel does not order their changes. A container must mount it from the host.
const LockFile = "/run/xtables.lock"

// lockPoll is how often a busy lock is tried. Programs hold it for milliseconds, or for seconds if
// they load many rules.
const lockPoll = 20 * time.Millisecond

// lock takes the lock of the iptables programs and returns its release. Where the file cannot
// exist, no program can hold the lock, and only the kernel's own check remains.
func lock(ctx context.Context, path string) (release func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NONBLOCK, 0o600) // a pipe must not block
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing releases it
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !retry.Pause(ctx, lockPoll) {
			_ = file.Close()
			return nil, fmt.Errorf("an iptables program holds %s: %w", path, context.Cause(ctx))
		}
	}
}
