package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A peerRun is what one proxy took in one cluster. Both proxies are measured by what a client sees, as nothing else is
// common to them.
type peerRun struct {
	cold     time.Duration // from exec until the last Service answers, the least of the runs
	endpoint time.Duration // from the API server having a Service's first endpoint until a client reaches it, median
	rss      float64       // after that, in bytes
}

// peerRounds is how many Services get their first endpoint in turn.
const peerRounds = 15

// measurePeer runs kube-nft and another proxy in the same clusters, one after the other, and writes a table.
func (o *options) measurePeer(w io.Writer) error {
	if o.binary == "" || o.peer == "" {
		return errors.New("the part peer needs -binary and -peer, a kube-proxy")
	}
	fmt.Fprint(w, "| cluster | measured | kube-proxy, nftables mode | kube-nft | ratio |\n|---|---|--:|--:|--:|\n")
	for _, at := range o.sizes {
		theirs, err := o.runPeer(o.peer, at, "--proxy-mode=nftables", "--conntrack-max-per-core=0")
		if err != nil {
			return fmt.Errorf("%s: %s: %w", at, o.peer, err)
		}
		ours, err := o.runPeer(o.binary, at, "--log-level=warn", "--conntrack-max-per-core=0")
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		for _, row := range []struct {
			what         string
			unit         unit
			theirs, ours float64
		}{
			{"exec until the last Service answers", seconds, theirs.cold.Seconds(), ours.cold.Seconds()},
			{"a Service's first endpoint until a client reaches it, median", seconds, theirs.endpoint.Seconds(),
				ours.endpoint.Seconds()},
			{"RSS", octets, theirs.rss, ours.rss},
		} {
			fmt.Fprintf(w, "| %s | %s | %s | %s | %.1f |\n", at, row.what, row.unit.text(row.theirs), row.unit.text(row.ours),
				row.theirs/row.ours)
		}
	}
	return nil
}

// runPeer measures one proxy.
func (o *options) runPeer(binary string, at size, flags ...string) (r *peerRun, err error) {
	l, err := newLive(binary, at)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	l.plain, l.flags = true, flags
	var starts []time.Duration
	for range o.runs {
		took, err := l.startUnobserved()
		if err != nil {
			return nil, err
		}
		starts = append(starts, took)
	}
	time.Sleep(settling)
	r = &peerRun{cold: least(starts)}
	var comes []time.Duration
	for i := range peerRounds {
		took, err := l.firstEndpoint(i)
		if err != nil {
			return nil, l.daemon.Failure(err)
		}
		comes = append(comes, took)
	}
	slices.Sort(comes)
	r.endpoint = comes[len(comes)/2]
	r.rss, err = l.daemon.memory("VmRSS")
	return r, err
}

// firstEndpoint adds a Service without endpoints, waits until that has been programmed, and gives it one.
func (l *live) firstEndpoint(i int) (time.Duration, error) {
	name, ip := fmt.Sprintf("empty-%d", i), clusterIP(maxServices+i)
	l.server.Apply(newService(name, ip))
	// kube-proxy rests for a second between two changes; this one is not to wait for the last.
	time.Sleep(2500 * time.Millisecond)
	begin := time.Now()
	l.server.Apply(newSlice(name, 0, []netip.Addr{l.fresh.next()}))
	if err := l.answers(netip.AddrPortFrom(ip, lab.ServicePort)); err != nil {
		return 0, err
	}
	return time.Since(begin), nil
}
