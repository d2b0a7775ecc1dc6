package legacy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// A layout is the form of a rule in one family, in bytes: struct ipt_entry of
// linux/netfilter_ipv4/ip_tables.h or struct ip6t_entry for IPv6. 64-bit numbers are
// aligned to eight bytes.
type layout struct {
	level      int    // of the socket options
	names      string // the file under /proc/net that lists the tables in use
	address    int    // offset of the destination address
	mask       int    // offset of its mask
	addressLen int
	protocol   int // offset of the protocol; before it the addresses and interfaces with their masks
	flags      int // offset of the flags; the inversion flags follow, then padding up to target-4
	gotoFlag   byte
	target     int // offset of target_offset, u16; next_offset, u16, follows
	counters   int // offset of the packet counter, u64; the byte counter follows
	header     int // length of the whole; the first match, or the target, follows
}

// layouts are constant.
var (
	layoutIP = layout{level: unix.SOL_IP, names: "ip_tables_names",
		address: 4, mask: 12, addressLen: 4, protocol: 80, flags: 82, gotoFlag: 2, target: 88, counters: 96, header: 112}
	layoutIP6 = layout{level: unix.SOL_IPV6, names: "ip6_tables_names",
		address: 16, mask: 48, addressLen: 16, protocol: 128, flags: 131, gotoFlag: 4, target: 140, counters: 152,
		header: 168}
)

// family returns the family whose rules have the layout.
func (l *layout) family() nft.Family {
	if l == &layoutIP6 {
		return nft.IP6
	}
	return nft.IP
}

// layoutOf returns the layout of family f.
func layoutOf(f nft.Family) *layout {
	if f == nft.IP6 {
		return &layoutIP6
	}
	return &layoutIP
}

// From struct xt_entry_match and xt_entry_target in linux/netfilter/x_tables.h. Both start with
// their size, u16, and a name of 29 bytes.
const (
	extensionHeader = 32
	extensionName   = 29
	standardTarget  = 40 // with the verdict, s32, and padding
	errorName       = 30 // of a chain, in an ERROR target
)

// entryBlock is the alignment of rules and extensions.
const entryBlock = 8

// An entry is one rule as the kernel holds it. The code never looks into its conditions.
type entry struct {
	data  []byte // aliases the blob it was read from, and is never written to
	index int    // its index in that blob, which is the index of its counters
	// A verdict that is an offset: jump is the chain that it jumps or goes to; through is true for
	// the offset of the next entry, which is the form of a rule without a target.
	jump    string
	through bool
}

// field returns a u16 at off.
func (e entry) field(off int) int { return int(binary.NativeEndian.Uint16(e.data[off:])) }

// targetName returns the name of the rule's target: empty for a verdict or a jump.
func (e entry) targetName(l *layout) string {
	return text(e.data[e.field(l.target)+2:], extensionName)
}

// verdict returns the offset of a standard target's verdict, or false for an extension.
func (e entry) verdict(l *layout) (off int, ok bool) {
	off = e.field(l.target)
	ok = e.targetName(l) == "" && len(e.data)-off == standardTarget
	return off + extensionHeader, ok
}

// text returns the string at the start of data, which ends with a zero or after n bytes.
func text(data []byte, n int) string {
	s, _, _ := bytes.Cut(data[:min(n, len(data))], []byte{0})
	return string(s)
}

// cutEntry takes the first rule off data and checks its form.
func cutEntry(l *layout, data []byte) (entry, error) {
	e := entry{data: data}
	if len(data) < l.header {
		return entry{}, fmt.Errorf("%d bytes are too few for a rule", len(data))
	}
	target, next := e.field(l.target), e.field(l.target+2)
	if next%entryBlock != 0 || next > len(data) || target < l.header || target+extensionHeader > next {
		return entry{}, fmt.Errorf("a rule of %d bytes with its target at %d", next, target)
	}
	if size := e.field(target); size < extensionHeader || target+size > next {
		return entry{}, fmt.Errorf("a target of %d bytes", size)
	}
	e.data = data[:next:next]
	_, err := e.matches(l)
	return e, err
}

// matches returns the rule's conditions apart from addresses, interfaces and protocol.
func (e entry) matches(l *layout) (list []Extension, err error) {
	for data := e.data[l.header:e.field(l.target)]; len(data) > 0; {
		if len(data) < extensionHeader {
			return nil, fmt.Errorf("a match cut off after %d bytes", len(data))
		}
		size := int(binary.NativeEndian.Uint16(data))
		if size < extensionHeader || size > len(data) {
			return nil, fmt.Errorf("a match of %d bytes", size)
		}
		list = append(list, extensionOf(data[:size]))
		data = data[size:]
	}
	return list, nil
}

// summary returns the rule as a ruleset holds it.
func (e entry) summary(l *layout) rule {
	r := rule{target: e.jump, plain: true}
	for i, b := range e.data[:l.flags+2] { // addresses, interfaces and protocol
		if b != 0 && (i != l.flags || b != l.gotoFlag) {
			r.plain = false
		}
	}
	r.protocol = uint8(e.field(l.protocol))
	n := l.addressLen
	if mask := e.data[l.mask : l.mask+n]; bytes.Count(mask, []byte{0xff}) == n {
		r.to, _ = netip.AddrFromSlice(e.data[l.address : l.address+n])
	}
	matches, _ := e.matches(l) // checked by cutEntry
	for _, m := range matches {
		r.addMatch(m.Name, m.Data)
	}
	target := extensionOf(e.data[e.field(l.target):])
	r.addTarget(l.family(), target.Name, target.Revision, target.Data)
	return r
}
