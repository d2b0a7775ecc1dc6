package legacy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
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
	infoLen       = 84 // struct ipt_getinfo
	getEntriesLen = 40 // struct ipt_get_entries before the rules
	replaceLen    = 96 // struct ipt_replace before the rules
	countersAt    = 40 // of struct xt_counters_info, where the counters begin
	counterLen    = 16 // struct xt_counters: packets, bytes
)

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

// info reads the kernel's summary of a table that must exist, struct ipt_getinfo.
func (s *socket) info(table string) ([]byte, error) {
	info := append(nameField(table), make([]byte, infoLen-tableName)...)
	return info, s.get(optGetInfo, info)
}

// snapshot reads a table that must exist: the kernel would create any other. EAGAIN means that the
// table changed meanwhile.
func (s *socket) snapshot(table string) (hookTable, []byte, error) {
	info, err := s.info(table)
	if err != nil {
		return hookTable{}, nil, err
	}
	hooks := hookTable{valid: u32(info, 32), entries: u32(info, 76)}
	for h := range numHooks {
		hooks.entry[h] = u32(info, 36+4*h)
		hooks.underflow[h] = u32(info, 56+4*h)
	}
	size := u32(info, 80)
	data := append(nameField(table), make([]byte, getEntriesLen-tableName+int(size))...)
	binary.NativeEndian.PutUint32(data[tableName:], size)
	if err := s.get(optGetEntries, data); err != nil {
		return hookTable{}, nil, err
	}
	return hooks, data[getEntriesLen:], nil
}

// replace replaces the rules of a table with have entries in one step, and returns the last values
// of the old counters. EAGAIN means that the number of entries has changed; replace has changed
// nothing then.
func (s *socket) replace(table string, have uint32, hooks hookTable, rules []byte) ([]byte, error) {
	counters := make([]byte, int(have)*counterLen)
	var pinner runtime.Pinner // the kernel writes to counters by an address hidden in bytes
	pinner.Pin(&counters[0])
	defer pinner.Unpin()

	request := append(nameField(table), make([]byte, replaceLen-tableName)...)
	put := binary.NativeEndian
	put.PutUint32(request[32:], hooks.valid)
	put.PutUint32(request[36:], hooks.entries)
	put.PutUint32(request[40:], uint32(len(rules)))
	for h := range numHooks {
		put.PutUint32(request[44+4*h:], hooks.entry[h])
		put.PutUint32(request[64+4*h:], hooks.underflow[h])
	}
	put.PutUint32(request[84:], have)
	put.PutUint64(request[88:], uint64(uintptr(unsafe.Pointer(&counters[0]))))
	err := s.set(optReplace, append(request, rules...))
	return counters, err
}

// addCounters adds to the counters of a table, entry by entry.
func (s *socket) addCounters(table string, counters []byte) error {
	request := append(nameField(table), make([]byte, countersAt-tableName)...)
	binary.NativeEndian.PutUint32(request[tableName:], uint32(len(counters)/counterLen))
	return s.set(optAddCounters, append(request, counters...))
}

// get calls getsockopt(2); data holds both its question and its answer.
func (s *socket) get(option int, data []byte) error {
	size := uint32(len(data))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.layout.level), uintptr(option),
		uintptr(unsafe.Pointer(&data[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// set calls setsockopt(2).
func (s *socket) set(option int, data []byte) error {
	return unix.SetsockoptString(s.fd, s.layout.level, option, unsafe.String(&data[0], len(data)))
}

// nameField returns the name of a table, padded with zeros.
func nameField(table string) []byte {
	name := make([]byte, tableName)
	copy(name, table)
	return name
}

// u32 returns the number at off.
func u32(data []byte, off int) uint32 { return binary.NativeEndian.Uint32(data[off:]) }
