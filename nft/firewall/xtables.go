package firewall

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A xrule is a rule of legacy ip_tables. n counts from 1, as iptables does.
type xrule struct {
	legacy.Rule
	chain string
	n     int
}

func (r xrule) name() string { return fmt.Sprintf("rule %d of its chain %s", r.n, r.chain) }

// xtable gives the chains of a table of ip_tables.
type xtable map[string]rules

func (x xtable) chain(_ context.Context, name string) (rules, error) { return x[name], nil }

// readXtables reads the base chain at a hook of a table of ip_tables, and what it leads to; nil if there is none.
func readXtables(ctx context.Context, f nft.Family, tableName string, hook uint32) (*base, error) {
	name := legacy.HookNames[hook]
	chains, err := legacy.ReadTable(ctx, f, tableName)
	if err != nil || len(chains[name]) == 0 {
		return nil, err
	}
	own := xtable{}
	for chain, list := range chains {
		for i, r := range list {
			own[chain] = append(own[chain], xrule{r, chain, i + 1})
		}
	}
	last := len(own[name]) - 1
	drops := verdictOf(chains[name][last]) == verdictDrop
	own[name] = own[name][:last]
	return &base{
		where: fmt.Sprintf("legacy %s table %s, chain %s", programOf(f), tableName, name), table: tableName, family: f,
		name: name, chains: own, legacy: true, drops: drops,
	}, nil
}

// programOf is the program that lists a table of ip_tables.
func programOf(f nft.Family) string {
	if f == nft.IP6 {
		return "ip6tables"
	}
	return "iptables"
}

// verdictOf is the verdict of a rule, as nf_tables has it.
func verdictOf(r legacy.Rule) int32 { return -r.Verdict - 1 }

// decide evaluates the rule.
func (r xrule) decide(w *walk) decision {
	p := w.packet
	d := decision{match: yes, general: true}
	only := func(t truth, not bool) {
		if not {
			t = t.not()
		}
		d.match = d.match.and(t)
	}
	about := func(f field, with legacy.Masked, not bool) {
		if slices.ContainsFunc(with.Mask, func(b byte) bool { return b != 0 }) {
			d.general = false
			only(masked(f, with), not)
		}
	}
	about(address(p.Source, p.Family), r.Source, r.NotSource)
	about(address(p.Destination, p.Family), r.Destination, r.NotDestination)
	about(interfaceName(p.In), r.In, r.NotIn)
	about(interfaceName(p.Out), r.Out, r.NotOut)
	if r.Protocol != 0 {
		t := is(r.Protocol == p.Protocol)
		if p.Protocol == 0 {
			t = maybe
		}
		only(t, r.NotProtocol)
	}
	if r.Fragments {
		d.general = false
		only(maybe, false)
	}
	for _, m := range r.Matches {
		x := extension(m)
		t, general := x.matches(w)
		only(t, false)
		d.general = d.general && general
	}
	switch {
	case r.Through:
	case r.Jump != "" && r.Goto:
		d.action, d.chain = goesTo, r.Jump
	case r.Jump != "":
		d.action, d.chain = jumps, r.Jump
	case r.Target.Name != "":
		x := extension(r.Target)
		x.target(w, &d)
	default:
		d.verdict(verdictOf(r.Rule))
	}
	return d
}

// masked compares the bits of a mask.
func masked(f field, with legacy.Masked) truth {
	masked := field{make([]byte, len(with.Value)), make([]byte, len(with.Value))}
	value := make([]byte, len(with.Value))
	for i, m := range with.Mask {
		masked.value[i], masked.known[i], value[i] = f.value[i]&m, f.known[i]|^m, with.Value[i]&m
	}
	return compare(unix.NFT_CMP_EQ, masked, value)
}

// An extension is a match or a target of x_tables, of either kind of tables.
type extension legacy.Extension

// bytes are n bytes of the data at an offset; zeros beyond the end.
func (x *extension) bytes(at, n int) []byte {
	b := make([]byte, n)
	copy(b, x.Data[min(at, len(x.Data)):])
	return b
}

// u8, u16 and u32 are numbers in the kernel's order.
func (x *extension) u8(at int) uint8   { return x.bytes(at, 1)[0] }
func (x *extension) u16(at int) uint16 { return binary.NativeEndian.Uint16(x.bytes(at, 2)) }
func (x *extension) u32(at int) uint32 { return binary.NativeEndian.Uint32(x.bytes(at, 4)) }

// States that only the match conntrack knows. Source: linux/netfilter/xt_conntrack.h.
const xtStateDNAT = 1 << 7

// matches says whether the packet meets a match. general says that it is not about certain packets: a protocol is
// general, because firewalls refuse each in its own way.
func (x *extension) matches(w *walk) (t truth, general bool) {
	p := w.packet
	switch x.Name {
	case "comment":
		return yes, true
	case "state":
		return is(x.u32(0)&p.State != 0), true
	case "mark":
		if x.Revision != 1 {
			break
		}
		t = masked(w.mark, legacy.Masked{Value: x.bytes(0, 4), Mask: x.bytes(4, 4)})
		if x.u8(8) != 0 {
			t = t.not()
		}
		return t, true
	case "conntrack":
		if x.Revision >= 1 {
			return x.conntrack(p)
		}
	case "tcp", "udp":
		return x.ports(p)
	case "multiport":
		if x.Revision == 1 {
			return x.multiport(p), false
		}
	}
	return maybe, false
}

// conntrack is the match of that name: struct xt_conntrack_mtinfo1 to 3.
func (x *extension) conntrack(p *Packet) (t truth, general bool) {
	const (
		flagsAt, invertAt, statesAt = 146, 148, 150
		ofState, ofStatus           = 1 << 0, 1 << 6
		alias                       = 1 << 13 // the words of the match state
	)
	flags, inverted := x.u16(flagsAt), x.u16(invertAt)
	states, statuses := x.u16(statesAt), x.u16(statesAt+2)
	if x.Revision == 1 {
		states, statuses = uint16(x.u8(statesAt)), uint16(x.u8(statesAt+1))
	}
	t, general = yes, true
	only := func(flag uint16, holds bool) {
		if flags&flag != 0 {
			t = t.and(is(holds != (inverted&flag != 0)))
		}
	}
	has := uint16(p.State)
	if p.Status&statusTranslated != 0 {
		has |= xtStateDNAT
	}
	only(ofState, states&has != 0)
	only(ofStatus, uint32(statuses)&p.Status != 0)
	if flags&^(ofState|ofStatus|alias) != 0 { // addresses, ports, times
		t, general = t.and(maybe), false
	}
	return t, general
}

// ports is the match of TCP or UDP: struct xt_tcp, xt_udp.
func (x *extension) ports(p *Packet) (t truth, general bool) {
	flagsAt := 8
	if x.Name == "tcp" {
		flagsAt = 11
	}
	t, general = yes, true
	between := func(port, from, to uint16, not bool) {
		switch {
		case from == 0 && to == 0xffff && !not:
			return
		case port == 0:
			t = t.and(maybe)
		default:
			t = t.and(is((port >= from && port <= to) != not))
		}
		general = false
	}
	between(p.SourcePort, x.u16(0), x.u16(2), x.u8(flagsAt)&1 != 0)
	between(p.DestinationPort, x.u16(4), x.u16(6), x.u8(flagsAt)&2 != 0)
	if x.Name == "tcp" && (x.u8(8) != 0 || x.u8(9) != 0) { // options and flags
		t, general = t.and(maybe), false
	}
	return t, general
}

// multiport is struct xt_multiport_v1.
func (x *extension) multiport(p *Packet) truth {
	const destinations, portsAt, rangesAt, invertAt = 1, 2, 32, 47
	if x.u8(0) != destinations || p.DestinationPort == 0 {
		return maybe
	}
	found := false
	for i := 0; i < int(min(x.u8(1), 15)); i++ {
		from := x.u16(portsAt + 2*i)
		to := from
		if x.u8(rangesAt+i) != 0 {
			i++
			to = x.u16(portsAt + 2*i)
		}
		found = found || p.DestinationPort >= from && p.DestinationPort <= to
	}
	return is(found != (x.u8(invertAt) != 0))
}

// target records what a target does.
func (x *extension) target(w *walk, d *decision) {
	switch x.Name {
	case "REJECT", "TARPIT":
		d.action = refuses
	case "NFQUEUE", "QUEUE":
		d.verdict(verdictQueue)
	case "DNAT", "REDIRECT", "NETMAP", "TPROXY":
		d.effect |= translating
	case "NOTRACK":
		d.effect |= untracking
	case "CT":
		if x.u16(0)&1 != 0 { // XT_CT_NOTRACK
			d.effect |= untracking
		}
	case "MARK":
		d.sets, d.mark = true, unknownField(4)
		if x.Revision != 2 {
			return
		}
		mask := x.u32(4)
		mark, known := binary.NativeEndian.Uint32(w.mark.value), binary.NativeEndian.Uint32(w.mark.known)
		binary.NativeEndian.PutUint32(d.mark.value, mark&^mask^x.u32(0))
		binary.NativeEndian.PutUint32(d.mark.known, known|mask)
	case "CONNMARK": // struct xt_connmark_tginfo1, xt_connmark_tginfo2
		const restores = 2
		mode := x.u8(12)
		if x.Revision == 2 {
			mode = x.u8(14)
		}
		if mode == restores { // a mark of the connection, which is not known
			d.sets, d.mark = true, unknownField(4)
			copy(d.mark.value, w.mark.value)
			known := binary.NativeEndian.Uint32(w.mark.known)
			binary.NativeEndian.PutUint32(d.mark.known, known&^x.u32(8))
		}
	}
}
