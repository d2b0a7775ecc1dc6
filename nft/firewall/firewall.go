package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

// A Firewall has the rules of other programs in this network namespace. It reads a chain when a packet reaches it.
// It is for one goroutine.
type Firewall struct {
	// Without names a chain that counts as missing, because it is going to be removed.
	Without string

	kernel *kernel.Client
	read   int // rules
	steps  int
	bases  []base                     // of nf_tables
	legacy map[legacyChain]legacyBase // those that were read
}

// A legacyChain is a base chain of the table filter of legacy ip_tables.
type legacyChain struct {
	family nft.Family
	hook   uint32
}

// A legacyBase is what was read of a legacyChain.
type legacyBase struct {
	base *base // nil if there is none
	err  error
}

// HasTable reports whether a table of this name, in any family, has a base chain.
func (f *Firewall) HasTable(name string) bool {
	return slices.ContainsFunc(f.bases, func(b base) bool { return b.table == name })
}

// Read reads what there is at the hooks. It makes the kernel load nothing.
func Read(ctx context.Context, k *kernel.Client) (*Firewall, error) {
	f := &Firewall{kernel: k, legacy: map[legacyChain]legacyBase{}}
	var err error
	for range readAttempts {
		if f.bases, err = f.listBases(ctx); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	return f, nil
}

// at returns the base chains that decide at a hook about packets of a family that were translated before. An error
// says why the legacy table could not be read.
func (f *Firewall) at(ctx context.Context, family nft.Family, hook uint32) (list []base, err error) {
	for _, b := range f.bases {
		if b.typ == "filter" && b.hook == hook && (b.family == family || b.family == inet) &&
			(hook != unix.NF_INET_LOCAL_OUT || b.priority > translatedPriority) {
			list = append(list, b)
		}
	}
	l, known := f.legacy[legacyChain{family, hook}]
	if !known {
		l.base, l.err = readXtables(ctx, family, "filter", hook)
		f.legacy[legacyChain{family, hook}] = l
	}
	if l.base != nil {
		list = append(list, *l.base)
	}
	return list, l.err
}

// A Blocker is what refuses a packet of a connection to an endpoint: a base chain of another program.
type Blocker struct {
	Where string // "table inet filter, chain forward"
	By    string // "its policy"
	// General says that what refuses it concerns all Services, and not certain addresses, ports or interfaces.
	General bool
	// Answer says that the packet passes, and its answer does not.
	Answer bool
	// Unless names a rule that may accept the packet, and is empty if the packet is refused for certain.
	Unless string
	Remedy string

	firewalld bool
}

// String says what the rules do.
func (b *Blocker) String() string {
	what, them := " refuses it", "it"
	if b.Answer {
		what, them = " refuses the answers", "them"
	}
	return b.Where + ": " + b.By + what + unlessText(b.Unless, them)
}

// unlessText says that a rule may accept what another refuses; empty without such a rule.
func unlessText(rule, them string) string {
	if rule == "" {
		return ""
	}
	return ", unless " + rule + " accepts " + them + " (kube-nft cannot tell)"
}

// answerHooks are the hooks that answers pass.
var answerHooks = map[uint32]uint32{
	unix.NF_INET_FORWARD: unix.NF_INET_FORWARD, unix.NF_INET_LOCAL_OUT: unix.NF_INET_LOCAL_IN,
	unix.NF_INET_LOCAL_IN: unix.NF_INET_LOCAL_OUT,
}

// Refuses returns what refuses a packet at a hook behind its translation, or its answer: for certain, else unless an
// uncertain rule accepts it; nil if nothing does. hook is NF_INET_FORWARD, NF_INET_LOCAL_OUT or NF_INET_LOCAL_IN of
// linux/netfilter.h.
func (f *Firewall) Refuses(ctx context.Context, hook uint32, p Packet) (*Blocker, error) {
	var unread error
	var uncertain *Blocker
	for _, answer := range []bool{false, true} {
		if answer {
			hook, p = answerHooks[hook], p.reply()
		}
		chains, err := f.at(ctx, p.Family, hook)
		unread = cmp.Or(unread, err)
		for i := range chains {
			b := &chains[i]
			out, err := f.follow(ctx, b, &p)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.where, err)
			}
			if !out.refused {
				continue
			}
			blocker := &Blocker{Where: b.where, By: out.by, General: out.general, Answer: answer, Unless: out.unless,
				Remedy: b.remedy(hook, &p, &out), firewalld: b.table == firewalld}
			if blocker.Unless == "" {
				return blocker, nil
			}
			uncertain = cmp.Or(uncertain, blocker)
		}
	}
	return uncertain, unread
}

// firewalld is the name of the table of that program.
const firewalld = "firewalld"

// remedy returns what lets connections to Services pass the chain, which is at a hook and has refused a packet. Before
// a policy, the rules go to the end of the chain: at its top they would accept what rules of a network policy in the
// chain refuse.
func (b *base) remedy(hook uint32, p *Packet, out *outcome) string {
	iptables := b.family != inet && b.table == "filter" && b.name == legacy.HookNames[hook]
	forward := hook == unix.NF_INET_FORWARD
	switch {
	case b.table == firewalld && hook == unix.NF_INET_LOCAL_IN:
		return fmt.Sprintf("firewall-cmd --permanent --add-port=%d/%s; firewall-cmd --reload", p.DestinationPort,
			nft.ProtocolText(p.Protocol))
	case b.table == firewalld:
		return "set StrictForwardPorts=no in /etc/firewalld/firewalld.conf and reload firewalld; no zone or policy of " +
			"firewalld can allow connections that another program translates"
	case forward && (slices.Contains(out.through, ufwChain) || slices.Contains(out.through, ufwChain6)):
		return "ufw route allow to POD-CIDR, for the pod CIDRs of all nodes"
	case iptables:
		program, chain := programOf(p.Family), b.name
		if b.legacy {
			program += "-legacy"
		}
		if forward && slices.Contains(out.through, dockerChain) {
			chain = dockerChain
		}
		how := "-I"
		if out.policy && chain == b.name {
			how = "-A"
		}
		return fmt.Sprintf("%s %s %s -m conntrack --ctstate DNAT -j ACCEPT; %s %s %s -m conntrack --ctstate "+
			"RELATED,ESTABLISHED -j ACCEPT", program, how, chain, program, how, chain)
	}
	how := "insert"
	if out.policy {
		how = "add"
	}
	return strings.NewReplacer("TABLE", b.family.NFT()+" "+nft.Visible(b.table), "CHAIN", nft.Visible(b.name),
		"HOW", how).Replace("nft HOW rule TABLE CHAIN ct status dnat accept; nft HOW rule TABLE CHAIN ct state " +
		"established,related accept")
}

// A Neighbour is a base chain of another program that sees a packet before our nat chains.
type Neighbour struct {
	Where    string
	Priority int32
	Effect   Effect
	Certain  bool // it does so for certain
}

// An Effect is what becomes of a packet before our nat chains.
type Effect int

// The effects.
const (
	Translates Effect = iota
	Untracks          // it keeps the packet from connection tracking, and so from our tables
	Refuses
)

// String says what the rules do.
func (n Neighbour) String() string {
	words := [...][2]string{
		Translates: {"translates", "may translate"},
		Untracks:   {"keeps connection tracking off", "may keep connection tracking off"},
		Refuses:    {"refuses", "may refuse"},
	}[n.Effect]
	what := words[0]
	if !n.Certain {
		what = words[1]
	}
	return fmt.Sprintf("%s (priority %d) %s the packet first", n.Where, n.Priority, what)
}

// Priorities of linux/netfilter_ipv4.h.
const (
	rawPriority        = -300 // NF_IP_PRI_RAW
	conntrackPriority  = -200 // NF_IP_PRI_CONNTRACK
	manglePriority     = -150 // NF_IP_PRI_MANGLE
	translatedPriority = -100 // NF_IP_PRI_NAT_DST
)

// Ahead lists the base chains that translate a first packet before our chains of a priority do, refuse it, or keep it
// from being tracked. hook is NF_INET_PRE_ROUTING or NF_INET_LOCAL_OUT.
func (f *Firewall) Ahead(ctx context.Context, p Packet, hook uint32, priority int32) (list []Neighbour, err error) {
	for i := range f.bases {
		b := &f.bases[i]
		if b.hook != hook || b.family != p.Family && b.family != inet || b.priority >= priority {
			continue
		}
		if list, err = f.ahead(ctx, list, b, &p); err != nil {
			return list, err
		}
	}
	for _, x := range []struct {
		table    string
		priority int32
	}{{"raw", rawPriority}, {"mangle", manglePriority}} {
		b, err := readXtables(ctx, p.Family, x.table, hook)
		if err == nil && b != nil {
			b.priority = x.priority
			list, err = f.ahead(ctx, list, b, &p)
		}
		if err != nil {
			return list, err
		}
	}
	return list, nil
}

// ahead adds what a base chain does with a packet before our chains.
func (f *Firewall) ahead(ctx context.Context, list []Neighbour, b *base, p *Packet) ([]Neighbour, error) {
	out, err := f.follow(ctx, b, p)
	if err != nil {
		return list, fmt.Errorf("%s: %w", b.where, err)
	}
	if out.refused {
		list = append(list, Neighbour{b.where, b.priority, Refuses, out.unless == ""})
	}
	nat := b.typ == "nat"
	if nat && out.possible&translating != 0 {
		list = append(list, Neighbour{b.where, b.priority, Translates, out.certain&translating != 0})
	}
	if !nat && b.priority < conntrackPriority && out.possible&untracking != 0 {
		list = append(list, Neighbour{b.where, b.priority, Untracks, out.certain&untracking != 0})
	}
	return list, nil
}
