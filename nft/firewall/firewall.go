package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// A Firewall has the rules of other programs in this network namespace. It reads a chain when a packet reaches it.
// It is for one goroutine.
type Firewall struct {
	// Without names a chain that counts as missing, because it is going to be removed.
	Without string

	kernel *kernel.Client
	read   int // rules
	steps  int
	bases  []baseChain
	tables map[string]*table
	legacy []base // at forward
	// unread is why legacy tables could not be read.
	unread error
}

// HasTable reports whether a table of this name, in any family, has a base chain.
func (f *Firewall) HasTable(name string) bool {
	return slices.ContainsFunc(f.bases, func(c baseChain) bool { return c.table == name })
}

// Read reads what there is at the hooks. It makes the kernel load nothing.
func Read(ctx context.Context, k *kernel.Client) (*Firewall, error) {
	f := &Firewall{kernel: k, tables: map[string]*table{}}
	var err error
	if f.bases, err = readBases(ctx, k); err != nil {
		return nil, err
	}
	for _, family := range nft.Families {
		b, ok, err := readXtables(ctx, family, "filter", "FORWARD")
		if ok {
			f.legacy = append(f.legacy, b)
		}
		f.unread = errors.Join(f.unread, err)
	}
	return f, nil
}

// atForward returns the base chains that decide about forwarded packets of a family.
func (f *Firewall) atForward(family nft.Family) (list []base) {
	for _, c := range f.bases {
		if c.typ == "filter" && c.hook == unix.NF_INET_FORWARD && (c.family == family || c.family == inet) {
			list = append(list, f.base(c))
		}
	}
	for _, b := range f.legacy {
		if b.family == family {
			list = append(list, b)
		}
	}
	return list
}

// base returns a base chain of nf_tables to follow packets through.
func (f *Firewall) base(c baseChain) base {
	name := familyText(c.family) + " " + c.table
	t := f.tables[name]
	if t == nil {
		t = &table{kernel: f.kernel, family: c.family, name: c.table, read: &f.read,
			known: map[string]rules{}, keys: map[string]int{}, found: map[string][]byte{}}
		f.tables[name] = t
	}
	return base{where: fmt.Sprintf("table %s, chain %s", nft.Visible(name), nft.Visible(c.name)), table: c.table,
		family: c.family, name: c.name, drops: c.drops, chains: t, users: c.users}
}

// A Refusal says which base chain refuses a forwarded packet.
type Refusal struct {
	Where string // "table inet filter, chain forward"
	By    string // "its policy"
	// General says that what refuses it concerns all Services, and not certain addresses, ports or interfaces.
	General bool
	// Answer says that the packet passes, and its answer does not.
	Answer bool
	Remedy string

	firewalld bool
}

// String says what the rules do.
func (r *Refusal) String() string {
	what := " refuses it"
	if r.Answer {
		what = " refuses the answers"
	}
	return r.Where + ": " + r.By + what
}

// Forward returns what refuses a packet at forward, or its answer; nil if nothing does for certain.
func (f *Firewall) Forward(ctx context.Context, p Packet) (*Refusal, error) {
	chains := f.atForward(p.Family)
	for i := range chains {
		b := &chains[i]
		for _, answer := range []bool{false, true} {
			q := p
			if answer {
				q = p.reply()
			}
			out, err := f.follow(ctx, b, &q)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.where, err)
			}
			if out.refused && !out.unless {
				return &Refusal{Where: b.where, By: out.by, General: out.general, Answer: answer, Remedy: b.remedy(p.Family),
					firewalld: b.table == firewalld}, nil
			}
		}
	}
	return nil, f.unread
}

// firewalld is the name of the table of that program.
const firewalld = "firewalld"

// remedy returns what lets connections to Services pass the chain.
func (b *base) remedy(f nft.Family) string {
	iptables := b.family != inet && b.table == "filter" && b.name == "FORWARD"
	switch {
	case b.table == firewalld:
		return "set StrictForwardPorts=no in /etc/firewalld/firewalld.conf and reload firewalld; no zone or policy of " +
			"firewalld can allow what others translate"
	case slices.Contains(b.users, ufwChain), slices.Contains(b.users, ufwChain6):
		return "ufw route allow to POD-CIDR, for the pod CIDRs of all nodes"
	case iptables:
		program, chain := programOf(f), "FORWARD"
		if b.legacy {
			program += "-legacy"
		}
		if slices.Contains(b.users, dockerChain) {
			chain = dockerChain
		}
		return fmt.Sprintf("%s -I %s -m conntrack --ctstate DNAT -j ACCEPT; %s -I %s -m conntrack --ctstate "+
			"RELATED,ESTABLISHED -j ACCEPT", program, chain, program, chain)
	}
	return strings.NewReplacer("TABLE", familyText(b.family)+" "+nft.Visible(b.table), "CHAIN", nft.Visible(b.name)).
		Replace("nft insert rule TABLE CHAIN ct status dnat accept; nft insert rule TABLE CHAIN ct state " +
			"established,related accept")
}

// A Neighbour is a base chain of another program that sees a packet before our nat chains.
type Neighbour struct {
	Where    string
	Priority int32
	Untracks bool // it keeps the packet from connection tracking, and so from our tables; otherwise it translates it
	Certain  bool // it does so for certain
}

// String says what the rules do.
func (n Neighbour) String() string {
	what := "translates"
	if n.Untracks {
		what = "keeps connection tracking off"
	}
	if !n.Certain {
		what = "may " + strings.Replace(strings.Replace(what, "translates", "translate", 1), "keeps", "keep", 1)
	}
	return fmt.Sprintf("%s (priority %d) %s the packet first", n.Where, n.Priority, what)
}

// conntrackPriority is NF_IP_PRI_CONNTRACK.
const conntrackPriority = -200

// Ahead lists the base chains of nf_tables that translate a first packet before our chains of a priority do, or
// keep it from being tracked. hook is NF_INET_PRE_ROUTING or NF_INET_LOCAL_OUT.
func (f *Firewall) Ahead(ctx context.Context, p Packet, hook uint32, priority int32) (list []Neighbour, err error) {
	for _, c := range f.bases {
		untracks := c.typ == "filter" && c.priority < conntrackPriority
		if c.hook != hook || c.family != p.Family && c.family != inet ||
			!untracks && (c.typ != "nat" || c.priority >= priority) {
			continue
		}
		b := f.base(c)
		out, err := f.follow(ctx, &b, &p)
		if err != nil {
			return list, fmt.Errorf("%s: %w", b.where, err)
		}
		wanted := translating
		if untracks {
			wanted = untracking
		}
		if out.possible&wanted != 0 {
			list = append(list, Neighbour{b.where, c.priority, untracks, out.certain&wanted != 0})
		}
	}
	for _, chain := range []struct {
		hook uint32
		name string
	}{{unix.NF_INET_PRE_ROUTING, "PREROUTING"}, {unix.NF_INET_LOCAL_OUT, "OUTPUT"}} {
		if chain.hook != hook {
			continue
		}
		b, ok, err := readXtables(ctx, p.Family, "raw", chain.name)
		if err != nil {
			return list, err
		}
		if !ok {
			continue
		}
		out, err := f.follow(ctx, &b, &p)
		if err != nil {
			return list, err
		}
		if out.possible&untracking != 0 {
			list = append(list, Neighbour{b.where, rawPriority, true, out.certain&untracking != 0})
		}
	}
	return list, nil
}

// rawPriority is NF_IP_PRI_RAW.
const rawPriority = -300

// ofFamily reports whether an address is of a family.
func ofFamily(f nft.Family, addr netip.Addr) bool { return addr.Is6() == (f == nft.IP6) }
