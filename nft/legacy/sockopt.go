package legacy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// Socket options of linux/netfilter_ipv4/ip_tables.h; the IPv6 ones have the same numbers.
const (
	optGetInfo     = 64 // IPT_SO_GET_INFO
	optGetEntries  = 65 // IPT_SO_GET_ENTRIES
	optReplace     = 64 // IPT_SO_SET_REPLACE
	optAddCounters = 65 // IPT_SO_SET_ADD_COUNTERS
)

// Lengths of the structures of those options, on 64-bit machines.
const (
	tableName     = 32 // the name of a table, at the start of each
	getEntriesLen = 40 // struct ipt_get_entries before the rules
	countersAt    = 40 // of struct xt_counters_info, where the counters begin
	counterLen    = 16 // struct xt_counters: packets, bytes
)

// A tableInfo is the kernel's summary of a table, struct ipt_getinfo.
type tableInfo struct {
	name  [tableName]byte
	hooks hookTable
	size  uint32 // of the rules, in bytes
}

// A replacement is struct ipt_replace before the rules, on 64-bit machines.
type replacement struct {
	name                 [tableName]byte
	valid, entries, size uint32
	entry, underflow     [numHooks]uint32
	counted              uint32 // rules that are replaced
	counters             uint64 // the address where the kernel writes theirs
}

// errWordSize says why a 32-bit program does nothing.
var errWordSize = errors.New("ip_tables has another layout for 32-bit programs; use iptables-legacy")

// A socket talks to ip_tables or ip6_tables in the network namespace of the thread that
// opened it.
type socket struct {
	fd     int
	layout *layout
}

// openSocket needs no privilege, and CAP_NET_ADMIN everything after. The iptables programs use a raw
// socket, which needs CAP_NET_RAW; the kernel takes these options of any socket of the family.
func openSocket(f nft.Family) (*socket, error) {
	if bits.UintSize != 64 {
		return nil, errWordSize
	}
	// netfilter and sockets have the same numbers for these families
	fd, err := unix.Socket(int(f), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	return &socket{fd, layoutOf(f)}, nil
}

func (s *socket) close() { _ = unix.Close(s.fd) } // nothing is buffered

// info reads the kernel's summary of a table that must exist.
func (s *socket) info(table string) (info tableInfo, err error) {
	copy(info.name[:], table)
	err = s.get(optGetInfo, unsafe.Pointer(&info), unsafe.Sizeof(info))
	return info, err
}

// snapshot reads a table that must exist: the kernel would create any other. EAGAIN means that the
// table changed meanwhile.
func (s *socket) snapshot(table string) (hookTable, []byte, error) {
	info, err := s.info(table)
	if err != nil {
		return hookTable{}, nil, err
	}
	data := make([]byte, getEntriesLen+int(info.size))
	copy(data, table)
	binary.NativeEndian.PutUint32(data[tableName:], info.size)
	if err := s.get(optGetEntries, unsafe.Pointer(&data[0]), uintptr(len(data))); err != nil {
		return hookTable{}, nil, err
	}
	return info.hooks, data[getEntriesLen:], nil
}

// replace replaces the rules of a table with have entries in one step, and returns the last values
// of the old counters. EAGAIN means that the number of entries has changed; replace has changed
// nothing then.
func (s *socket) replace(table string, have uint32, hooks hookTable, rules []byte) ([]byte, error) {
	counters := make([]byte, int(have)*counterLen)
	var pinner runtime.Pinner // the kernel writes to counters by an address hidden in bytes
	pinner.Pin(&counters[0])
	defer pinner.Unpin()

	r := replacement{
		valid: hooks.valid, entries: hooks.entries, size: uint32(len(rules)), entry: hooks.entry, underflow: hooks.underflow,
		counted: have, counters: uint64(uintptr(unsafe.Pointer(&counters[0]))),
	}
	copy(r.name[:], table)
	header := unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r))
	err := s.set(optReplace, slices.Concat(header, rules))
	return counters, err
}

// addCounters adds to the counters of a table, entry by entry.
func (s *socket) addCounters(table string, counters []byte) error {
	request := make([]byte, countersAt)
	copy(request, table)
	binary.NativeEndian.PutUint32(request[tableName:], uint32(len(counters)/counterLen))
	return s.set(optAddCounters, append(request, counters...))
}

// get calls getsockopt(2); data holds both its question and its answer.
func (s *socket) get(option int, data unsafe.Pointer, length uintptr) error {
	size := uint32(length)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.layout.level), uintptr(option),
		uintptr(data), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// set calls setsockopt(2).
func (s *socket) set(option int, data []byte) error {
	return unix.SetsockoptString(s.fd, s.layout.level, option, unsafe.String(&data[0], len(data)))
}
