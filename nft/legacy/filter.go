package legacy

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// A Rule is a rule of ip_tables or ip6_tables with its conditions.
type Rule struct {
	// What the packet is compared with, and where the result is inverted.
	Source, Destination                      Masked
	In, Out                                  Masked // names of interfaces
	NotSource, NotDestination, NotIn, NotOut bool
	Protocol                                 uint8 // 0: any
	NotProtocol                              bool
	Fragments                                bool // only second and later fragments, or all but these
	Matches                                  []Extension
	Target                                   Extension // its name is empty for a verdict or a jump
	Verdict                                  int32     // of an empty target: minus the verdict minus 1
	Jump                                     string    // the chain, in place of a verdict
	Goto                                     bool      // the jump does not return
	Through                                  bool      // without a target: the next rule
}

// Masked are bytes that are compared where the mask has bits.
type Masked struct{ Value, Mask []byte }

// largestTable is the length of the largest table that ReadTable reads: about 50,000 rules.
const largestTable = 16 << 20

// ErrTooLarge says that a table is too large to be read beside other work.
var ErrTooLarge = errors.New("the table is very large")

// Inversion flags of a rule, IPT_INV_… in linux/netfilter_ipv4/ip_tables.h; those of IPv6 are the same.
const (
	notIn          = 1 << 0
	notOut         = 1 << 1
	notSource      = 1 << 3
	notDestination = 1 << 4
	notFragments   = 1 << 5
	notProtocol    = 1 << 6
)

// ReadTable returns the rules of a table of family f by chain, nil if there is no such table. The policy is the
// last rule of a base chain. It makes the kernel load nothing.
func ReadTable(ctx context.Context, f nft.Family, table string) (chains map[string][]Rule, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = eachXtable(ctx, f, []string{table}, "", func(s *socket, table string) error {
		info, err := s.info(table)
		if err != nil {
			return err
		}
		if info.size > largestTable {
			return ErrTooLarge
		}
		x, err := s.read(table)
		if err != nil {
			return err
		}
		chains = make(map[string][]Rule, len(x.rules.chains))
		for _, c := range x.rules.chains {
			list := make([]Rule, len(c.entries))
			for i, e := range c.entries {
				list[i] = e.conditions(s.layout)
			}
			chains[c.name] = list
		}
		return nil
	})
	return chains, err
}

// conditions returns the rule with its conditions. It keeps the entry's memory.
func (e entry) conditions(l *layout) Rule {
	n, interfaces := l.addressLen, l.mask+l.addressLen
	name := func(i int) []byte { return e.data[interfaces+i*unix.IFNAMSIZ : interfaces+(i+1)*unix.IFNAMSIZ] }
	flags, inverted := e.data[l.flags], e.data[l.flags+1]
	r := Rule{
		Source:      Masked{e.data[:n], e.data[l.mask-n : l.mask]},
		Destination: Masked{e.data[l.address : l.address+n], e.data[l.mask : l.mask+n]},
		In:          Masked{name(0), name(2)}, Out: Masked{name(1), name(3)},
		NotIn: inverted&notIn != 0, NotOut: inverted&notOut != 0,
		NotSource: inverted&notSource != 0, NotDestination: inverted&notDestination != 0,
		Protocol: uint8(e.field(l.protocol)), NotProtocol: inverted&notProtocol != 0,
		Fragments: l.family() == nft.IP && flags&1 != 0 || inverted&notFragments != 0,
		Jump:      e.jump, Goto: flags&l.gotoFlag != 0, Through: e.through,
	}
	r.Matches, _ = e.matches(l) // checked by cutEntry
	r.Target = extensionOf(e.data[e.field(l.target):])
	if at, ok := e.verdict(l); ok && r.Jump == "" && !r.Through {
		r.Verdict = int32(binary.NativeEndian.Uint32(e.data[at:]))
	}
	return r
}

// extensionOf reads a match or a target.
func extensionOf(data []byte) Extension {
	return Extension{text(data[2:], extensionName), data[extensionHeader-1], data[extensionHeader:]}
}
