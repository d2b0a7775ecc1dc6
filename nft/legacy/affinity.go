package legacy

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// An AffinityEntry says to which endpoint kube-proxy's session affinity sends a client.
type AffinityEntry struct {
	Frontend tracker.Frontend // one of the Service port's
	Client   netip.Addr
	Endpoint netip.AddrPort
}

// valid reports whether client and endpoint are addresses of the same family.
func (e *AffinityEntry) valid() bool {
	return e.Client.IsValid() && e.Endpoint.IsValid() && e.Client.Is6() == e.Endpoint.Addr().Is6()
}

// A ClientList is where the iptables mode keeps the clients of an endpoint: a list of the x_tables
// extension recent.
type ClientList struct {
	Name     string
	Frontend tracker.Frontend
	Endpoint netip.AddrPort
}

// maxEntries is how many entries are read. The nftables mode has room for 65,535 at each endpoint.
const maxEntries = 1 << 17

// affinityPatience bounds how long Affinity reads. It returns what it has read by then.
const affinityPatience = 2 * time.Second

// clientLists finds the lists of clients of a table nat with these frontends. Which frontend a list is for follows from
// the chains that lead to the one that enters clients.
func (rs *ruleset) clientLists(frontends []Frontend) (lists []ClientList) {
	rulesOf := newChainReader(rs.chains).rules
	leads := make(map[string]tracker.Frontend) // the first frontend that leads to a chain
	var reached []string
	reach := func(chain string, at tracker.Frontend) {
		if _, known := leads[chain]; !known && perService.MatchString(chain) {
			leads[chain], reached = at, append(reached, chain)
		}
	}
	for _, f := range frontends {
		reach(f.leads, f.Frontend)
	}
	seen := make(map[string]bool)
	for n := 0; n < len(reached); n++ { // it grows
		at := leads[reached[n]]
		for _, r := range rulesOf(reached[n]) {
			reach(r.target, at)
			// The name is that of a file: it has to be one of kube-proxy's.
			if r.endpoint.IsValid() && perService.MatchString(r.recent) && !seen[r.recent] {
				seen[r.recent] = true
				lists = append(lists, ClientList{r.recent, at, r.endpoint})
			}
		}
	}
	return lists
}

// recentDir has the lists of clients of the calling thread's network namespace.
const recentDir = "/proc/thread-self/net/xt_recent"

// A clientReader reads lists of clients.
type clientReader struct {
	entries []AffinityEntry
	found   map[clientOf]lastSeen
}

// A clientOf is a client of the Service port that has a frontend.
type clientOf struct {
	frontend tracker.Frontend
	client   netip.Addr
}

// A lastSeen says when the kernel has last seen a client, in ticks of its own, and which entry that is.
type lastSeen struct {
	ticks uint64
	entry int
}

// readClientLists reads lists of clients. The error says how many lists could not be read, and why.
func readClientLists(ctx context.Context, lists []ClientList) (entries []AffinityEntry, err error) {
	r := clientReader{found: make(map[clientOf]lastSeen)}
	for n := range lists {
		if ctx.Err() != nil {
			return r.entries,
				fmt.Errorf("kube-nft read only %d of %d lists of clients of kube-proxy's iptables mode within %v",
					n, len(lists), affinityPatience)
		}
		err = cmp.Or(err, r.readFile(&lists[n]))
	}
	if err != nil {
		err = fmt.Errorf("cannot read lists of clients of kube-proxy's iptables mode: %w", err)
	}
	return r.entries, err
}

func (r *clientReader) readFile(list *ClientList) error {
	file, err := os.Open(filepath.Join(recentDir, list.Name))
	if err != nil {
		return err
	}
	return errors.Join(r.read(file, list), file.Close())
}

// read reads a list of clients, one in a line: "src=192.0.2.7 ttl: 64 last_seen: 4295092139
// oldest_pkt: 1 4295092139". A client may still be in the list of an endpoint that it used earlier. It
// keeps the endpoint at which it was seen last.
func (r *clientReader) read(text io.Reader, list *ClientList) error {
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 5 || f[3] != "last_seen:" {
			continue
		}
		source, _ := strings.CutPrefix(f[0], "src=")
		client, err := netip.ParseAddr(source)
		ticks, ticksErr := strconv.ParseUint(f[4], 10, 64)
		e := AffinityEntry{list.Frontend, client, list.Endpoint}
		if err != nil || ticksErr != nil || !e.valid() {
			continue
		}
		key := clientOf{e.Frontend, client}
		last, known := r.found[key]
		switch {
		case known && ticks > last.ticks:
			r.entries[last.entry], r.found[key] = e, lastSeen{ticks, last.entry}
		case !known && len(r.entries) < maxEntries:
			r.entries, r.found[key] = append(r.entries, e), lastSeen{ticks, len(r.entries)}
		}
	}
	return lines.Err()
}

// The names of the nftables mode: a set of clients for each endpoint, and the chain that enters them.
const (
	proxyAffinity = "affinity-"
	proxyEndpoint = "endpoint-"
)

// keyAddress returns the address that is the key of an element.
func keyAddress(element []byte) netip.Addr {
	addr, _ := netip.AddrFromSlice(attr.Find(attr.Find(element, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE))
	return addr
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
