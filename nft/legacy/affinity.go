package legacy

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// An AffinityEntry says to which endpoint kube-proxy's session affinity sends a client.
type AffinityEntry struct {
	Frontend tracker.Frontend // one of the Service port's, which tells the Service port
	Client   netip.Addr
	Endpoint netip.AddrPort
	Left     time.Duration // until kube-proxy would forget it
}

// A ClientList is where the iptables mode keeps the clients of an endpoint: a list of the extension
// recent of x_tables.
type ClientList struct {
	Name     string
	Frontend tracker.Frontend
	Endpoint netip.AddrPort
	Timeout  time.Duration
}

// mostEntries is how many entries are kept of all that kube-proxy has: those that expire last. Its
// nftables mode has room for 65,535 at each endpoint.
const mostEntries = 1 << 17

// affinityPatience bounds how long Affinity reads. What it has read by then counts.
const affinityPatience = 2 * time.Second

// latest keeps the entries that expire last.
type latest struct{ list []AffinityEntry }

func (l *latest) add(e AffinityEntry) {
	if e.Left <= 0 || !e.Client.IsValid() || e.Client.Is6() != e.Endpoint.Addr().Is6() {
		return
	}
	if l.list = append(l.list, e); len(l.list) >= 2*mostEntries {
		l.list = l.entries()
	}
}

// entries sorts and cuts what is there.
func (l *latest) entries() []AffinityEntry {
	slices.SortStableFunc(l.list, func(a, b AffinityEntry) int { return cmp.Compare(b.Left, a.Left) })
	return l.list[:min(len(l.list), mostEntries)]
}

// A recent is what a rule has to do with a list of clients: kube-proxy's chain of a Service port
// looks for a client there, for a time, and the chain of the endpoint enters it.
type recent struct {
	name     string
	seconds  uint32         // 0: it does not ask for the time
	endpoint netip.AddrPort // of the rule's DNAT; zero if it has none
}

// recentOf reads the parameters of the extension recent: struct xt_recent_mtinfo of
// linux/netfilter/xt_recent.h, which later revisions only add to.
func recentOf(info []byte) *recent {
	const nameAt, nameLen = 10, 200
	if len(info) < nameAt+nameLen {
		return nil
	}
	return &recent{name: text(info[nameAt:], nameLen), seconds: binary.NativeEndian.Uint32(info)}
}

// translation reads the target DNAT: struct nf_nat_ipv4_multi_range_compat in its first revision, for
// IPv4, and struct nf_nat_range, which later ones only add to (linux/netfilter/nf_nat.h).
func translation(f nft.Family, revision uint8, info []byte) (to netip.AddrPort) {
	address, port, n := 4, 4+2*16, nft.AddrLen(f)
	if revision == 0 && f == nft.IP {
		address, port = 8, 8+2*4
	}
	if len(info) < port+2 {
		return to
	}
	addr, _ := netip.AddrFromSlice(info[address : address+n])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(info[port:]))
}

// clientLists finds the lists of clients of a table nat. Which frontend a list is for follows from the
// chains that lead to the one that enters clients.
func (rs *ruleset) clientLists(f nft.Family) (lists []ClientList) {
	if rs.table != "nat" {
		return nil
	}
	chains := make(map[string]*chain, len(rs.chains))
	for i := range rs.chains {
		chains[rs.chains[i].name] = &rs.chains[i]
	}
	leads := make(map[string]tracker.Frontend) // the first frontend that leads to a chain
	var reached []string
	reach := func(chain string, at tracker.Frontend) {
		if _, known := leads[chain]; !known && perService.MatchString(chain) {
			leads[chain], reached = at, append(reached, chain)
		}
	}
	for _, entrance := range []string{"KUBE-SERVICES", "KUBE-NODEPORTS"} {
		if c := chains[entrance]; c != nil {
			for _, r := range c.rules {
				if at, ok := r.frontend(f, entrance); ok {
					reach(r.target, at)
				}
			}
		}
	}
	timeouts := make(map[string]time.Duration)
	for n := 0; n < len(reached); n++ { // it grows
		c := chains[reached[n]]
		if c == nil {
			continue
		}
		for _, r := range c.rules {
			reach(r.target, leads[c.name])
			if r.recent != nil && r.recent.seconds != 0 {
				timeouts[r.recent.name] = time.Duration(r.recent.seconds) * time.Second
			}
		}
	}
	seen := make(map[string]bool)
	for _, name := range reached {
		if chains[name] == nil {
			continue
		}
		for _, r := range chains[name].rules {
			// The name is that of a file: it has to be one of kube-proxy's.
			if r.recent == nil || !r.recent.endpoint.Addr().IsValid() || !perService.MatchString(r.recent.name) || seen[r.recent.name] {
				continue
			}
			if timeout := timeouts[r.recent.name]; timeout > 0 {
				seen[r.recent.name] = true
				lists = append(lists, ClientList{r.recent.name, leads[name], r.recent.endpoint, timeout})
			}
		}
	}
	return lists
}

// netDir is what the kernel shows of the network namespace of the calling thread.
const netDir = "/proc/thread-self/net"

// readClientLists reads lists of clients.
func readClientLists(ctx context.Context, lists []ClientList, all *latest) error {
	if len(lists) == 0 {
		return nil
	}
	now, err := presentTick()
	unread, guessed := 0, 0
	var first error
	if err != nil {
		first = fmt.Errorf("%w: clients keep their endpoint for the whole timeout", err)
	}
	for n, list := range lists {
		if ctx.Err() != nil {
			unread += len(lists) - n
			first = cmp.Or(first, fmt.Errorf("it took more than %v", affinityPatience))
			break
		}
		file, err := os.Open(filepath.Join(netDir, "xt_recent", list.Name))
		if err == nil {
			var guesses int
			guesses, err = parseClients(file, list, now, all)
			guessed += guesses
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			unread++
			first = cmp.Or(first, err)
		}
	}
	switch {
	case unread > 0:
		return fmt.Errorf("session affinity of the iptables mode: %d of %d lists of clients could not be read: %w", unread, len(lists), first)
	case first != nil:
		return fmt.Errorf("session affinity of the iptables mode: %w", first)
	case guessed > 0:
		return fmt.Errorf("session affinity of the iptables mode: %d clients have been seen at no time that can be, and keep their endpoint for the whole timeout", guessed)
	}
	return nil
}

// A tick is a moment as the kernel counts time: jiffies.
type tick struct {
	count uint64 // 0 if it is not known
	rate  uint64 // per second
}

// presentTick works out the present one. The kernel shows its counter to root alone, and container
// runtimes hide that file. The rate is the resolution of the coarse clock. The counter begins five
// minutes before it has 32 bits full (INITIAL_JIFFIES of linux/jiffies.h) and then goes with the
// monotonic clock; a start of the machine that took long leaves it behind by that.
func presentTick() (tick, error) {
	var resolution, now unix.Timespec
	if err := cmp.Or(unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &resolution), unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)); err != nil {
		return tick{}, fmt.Errorf("the kernel's clock: %w", err)
	}
	period := resolution.Nano()
	if period <= 0 || period > int64(100*time.Millisecond) {
		return tick{}, fmt.Errorf("the kernel's clock has the resolution %v", time.Duration(period))
	}
	offsets, _ := os.ReadFile("/proc/self/timens_offsets") // none without time namespaces
	for line := range strings.Lines(string(offsets)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "monotonic" && (f[1] != "0" || f[2] != "0") {
			return tick{}, errors.New("in a time namespace the kernel's clock cannot be read")
		}
	}
	rate := uint64((int64(time.Second) + period/2) / period)
	return tick{count: 1<<32 - 300*rate + uint64(now.Nano()/period), rate: rate}, nil
}

// tickSlack is by how much a moment may lie ahead of the present one as worked out.
const tickSlack = 3 * time.Second

// since returns the time from a moment until now; false if that cannot be.
func (now tick) since(then uint64) (time.Duration, bool) {
	age := int64(now.count - then)
	if strconv.IntSize == 32 { // of an unsigned long
		age = int64(int32(uint32(now.count) - uint32(then)))
	}
	if now.count == 0 || age > int64(now.count-(1<<32-300*now.rate)) { // before the machine's start
		return 0, false
	}
	d := time.Duration(float64(age) / float64(now.rate) * float64(time.Second))
	return max(d, 0), d > -tickSlack
}

// parseClients reads a list of clients, one in a line: "src=192.0.2.7 ttl: 64 last_seen: 4295092139
// oldest_pkt: 1 4295092139". It returns how many were seen at a time that cannot be: they count as
// just seen.
func parseClients(r io.Reader, list ClientList, now tick, all *latest) (guessed int, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 5 || f[3] != "last_seen:" {
			continue
		}
		source, _ := strings.CutPrefix(f[0], "src=")
		client, err := netip.ParseAddr(source)
		seen, seenErr := strconv.ParseUint(f[4], 10, 64)
		if err != nil || seenErr != nil {
			continue
		}
		age, ok := now.since(seen)
		if !ok && now.count != 0 {
			guessed++
		}
		all.add(AffinityEntry{list.Frontend, client, list.Endpoint, list.Timeout - age})
	}
	return guessed, lines.Err()
}

// The names of the nftables mode: a set of clients for each endpoint, and the chain that enters them.
const (
	proxyAffinity = "affinity-"
	proxyEndpoint = "endpoint-"
)

// proxyClient reads an element of a set of clients.
func proxyClient(element []byte) (client netip.Addr, left time.Duration) {
	client, _ = netip.AddrFromSlice(attr.Find(attr.Find(element, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE))
	if ms := attr.Find(element, unix.NFTA_SET_ELEM_EXPIRATION); len(ms) == 8 {
		left = time.Duration(min(binary.BigEndian.Uint64(ms), uint64(1<<32))) * time.Millisecond
	}
	return client, left
}

// A proxyPort tells a Service port of the nftables mode by the name that chains and sets have.
type proxyPort struct {
	service  string // as in Frontend.Service
	protocol tracker.Protocol
}

// proxyPortOf reads it out of "service-ULMVA6XW-namespace/name/tcp/port", or out of the name of
// an endpoint's set, where "__" and the endpoint follow.
func proxyPortOf(name string) proxyPort {
	name, _, _ = strings.Cut(name, "__")
	p := proxyPort{service: serviceOfChain(name)}
	if parts := strings.Split(name, "/"); len(parts) > 2 {
		p.protocol = protocolNumbers[parts[2]]
	}
	return p
}
