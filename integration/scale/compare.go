package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A contender is a proxy that is compared. Without a program it is the floor: a static map from each Service to its
// first endpoint, which follows no changes.
type contender struct {
	name  string
	argv  []string // program and flags
	plain bool     // it is a kube-proxy, which has not all flags of kube-nft
}

func (o *options) contenders() ([]contender, error) {
	if o.binary == "" {
		return nil, errors.New("the part compare needs -binary")
	}
	const limit = "--conntrack-max-per-core=0" // all namespaces share the limit
	// The floor comes first: its endpoints have to be there.
	all := []contender{{name: "static map"}, {"kube-nft", []string{o.binary, limit}, false}}
	if o.peer == "" {
		return all, nil
	}
	for _, mode := range strings.Split(o.modes, ",") {
		all = append(all, contender{"kube-proxy " + mode, []string{o.peer, limit, "--proxy-mode=" + mode}, true})
	}
	return all, nil
}

// What is compared. Charts show some of the rows.
const (
	syncTime      = "start, until the last Service answers"
	syncCPU       = "CPU time until then"
	oneChange     = "first endpoint of a Service, until a client reaches it, median"
	oneReplaced   = "an endpoint is replaced, until the kernel has it, median"
	steadyRSS     = "RSS, 3 s after the start"
	highestRSS    = "highest RSS with programs that it runs, until the end"
	idleCPU       = "CPU time in a second, idle"
	rate          = "connections a second"
	ofCPU         = "connections in a second of the clients' CPU time"
	connectP50    = "connect, p50"
	connectP99    = "connect, p99"
	connectFailed = "connects that failed, of a million"
	churnCPU      = "CPU time in a second, under change"
	churnRate     = "connections a second, under change"
	churnP50      = "connect under change, p50"
	churnP99      = "connect under change, p99"
	churnFailed   = "connects that failed under change, of a million"
)

// changesPerSecond is how many endpoints are replaced in a second, each by one of a new address.
const changesPerSecond = 200

var comparedRows = []string{syncTime, syncCPU, oneChange, oneReplaced, steadyRSS, highestRSS, idleCPU, rate, ofCPU,
	connectP50, connectP99, connectFailed, churnCPU, churnRate, churnP50, churnP99, churnFailed}

// A trial holds what all contenders took in all clusters.
type trial struct {
	sizes  []size
	names  []string
	sheet  *sheet
	gaveUp []string
	loads  [2]string // of the machine, before and after
}

// rowName is the name of a row in the sheet.
func rowName(what, contender string) string { return what + ", " + contender }

// compare runs the contenders one after the other in the same namespaces, and writes a table, and pages into -out.
func (o *options) compare(w io.Writer) error {
	all, err := o.contenders()
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(8) // a client that comes back from a system call finds a processor of the Go runtime
	t := &trial{sizes: o.sizes, sheet: newSheet(o.sizes)}
	t.loads[0] = loadAverage()
	for _, c := range append(all[1:len(all):len(all)], all[0]) {
		t.names = append(t.names, c.name)
	}
	for _, at := range o.sizes {
		if err := o.compareAt(t, at, all); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		t.loads[1] = loadAverage()
		if o.out != "" { // now: the next size may take an hour
			if err := t.write(o.out, os.Args); err != nil {
				return err
			}
		}
	}
	t.writeTable(w)
	return nil
}

func (o *options) compareAt(t *trial, at size, all []contender) (err error) {
	l, err := newRoutedLive(at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for _, c := range all {
		fmt.Fprintf(os.Stderr, "scale: %s: %s\n", at, c.name)
		if err := l.reset(); err != nil {
			return err
		}
		err := o.contend(t.sheet, l, c)
		var late tooLate
		if errors.As(err, &late) {
			used, _ := l.daemon.cpu() // 0 if it has ended
			t.gaveUp = append(t.gaveUp, fmt.Sprintf("%s, %s: %v; it has used %s of CPU time", at, c.name, late,
				shortDuration(used)))
		} else if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// contend measures one contender.
func (o *options) contend(s *sheet, l *routedLive, c contender) (err error) {
	at := l.at
	if c.argv == nil {
		if err := l.space.Do(func() error { return loadText(staticMap(at)) }); err != nil {
			return err
		}
		return o.connections(s, l, c, rate, connectP50, connectP99, connectFailed)
	}
	l.binary, l.flags, l.plain = c.argv[0], c.argv[1:], c.plain
	if l.daemon, err = l.startDaemon(); err != nil {
		return err
	}
	highest := l.daemon.watchMemory()
	defer func() { s.set(at, rowName(highestRSS, c.name), octets, highest()) }()
	if err := l.answers(l.last); err != nil {
		return l.daemon.Failure(err)
	}
	s.duration(at, rowName(syncTime, c.name), time.Since(l.daemon.started))
	cpu, err := l.daemon.cpu()
	if err != nil {
		return err
	}
	s.duration(at, rowName(syncCPU, c.name), cpu)
	time.Sleep(settling)
	rss, err := l.daemon.memory("VmRSS")
	if err != nil {
		return err
	}
	s.set(at, rowName(steadyRSS, c.name), octets, rss)
	if err := l.using(s, rowName(idleCPU, c.name), func() error { time.Sleep(o.churn / 2); return nil }); err != nil {
		return err
	}
	if err := o.connections(s, l, c, rate, connectP50, connectP99, connectFailed); err != nil {
		return err
	}
	median, err := l.medianOf(l.firstEndpoint)
	if err != nil {
		return err
	}
	s.duration(at, rowName(oneChange, c.name), median)
	switch median, err = l.medianOf(l.replacedEndpoint); {
	case err == nil:
		s.duration(at, rowName(oneReplaced, c.name), median)
	case !errors.As(err, new(tooLate)): // only nftables tells of changes, not ip_tables and IPVS
		return err
	}
	churn := l.newChurn()
	stop := meanwhile(changesPerSecond, churn.replace)
	err = l.using(s, rowName(churnCPU, c.name), func() error {
		return o.connections(s, l, c, churnRate, churnP50, churnP99, churnFailed)
	})
	stop()
	return errors.Join(err, churn.close())
}

// using notes the CPU time that the daemon and the programs that it ran take in a second, while something is done.
func (l *live) using(s *sheet, row string, do func() error) error {
	before, err := l.daemon.cpu()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := do(); err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := l.daemon.cpu()
	s.duration(l.at, row, time.Duration(float64(after-before)/took.Seconds()))
	return err
}

// connections notes what clients get.
func (o *options) connections(s *sheet, l *routedLive, c contender, rateRow, p50Row, p99Row, failedRow string) error {
	got, err := l.connect(o.churn)
	if err != nil {
		return err
	}
	if got.failed > 0 { // a timeout may be this machine's
		fmt.Fprintf(os.Stderr, "scale: %s: %s: %d connects failed, the last ones: %v\n", l.at, c.name, got.failed, got.err)
	}
	s.set(l.at, rowName(rateRow, c.name), perSecond, float64(len(got.took))/o.churn.Seconds())
	s.duration(l.at, rowName(p50Row, c.name), quantile(got.took, 0.5))
	s.duration(l.at, rowName(p99Row, c.name), quantile(got.took, 0.99))
	s.set(l.at, rowName(failedRow, c.name), count, 1e6*float64(got.failed)/float64(len(got.took)))
	if rateRow == rate {
		s.set(l.at, rowName(ofCPU, c.name), perSecond, float64(len(got.took))/got.cpu.Seconds())
	}
	return nil
}

// medianOf returns the median of several rounds, fewer if they take minutes.
func (l *routedLive) medianOf(once func() (time.Duration, error)) (time.Duration, error) {
	const (
		rounds = 5
		enough = time.Minute
	)
	var all []time.Duration
	for begin := time.Now(); len(all) == 0 || len(all) < rounds && time.Since(begin) < enough; {
		took, err := once()
		if err != nil {
			return 0, l.daemon.Failure(err)
		}
		all = append(all, took)
	}
	return quantile(all, 0.5), nil
}

// rest is the pause before a change: kube-proxy rests for a second between two of them, and this one is not to wait.
const rest = 2500 * time.Millisecond

// firstEndpoint adds a Service without endpoints, and returns the time from the API server having its first endpoint
// until a client reaches it.
func (l *routedLive) firstEndpoint() (time.Duration, error) {
	l.empty++
	name, ip := fmt.Sprintf("empty-%d", l.empty), clusterIP(maxServices+l.empty)
	l.server.Apply(newService(name, ip))
	time.Sleep(rest)
	begin := time.Now()
	l.server.Apply(newSlice(name, 0, []netip.Addr{l.fresh.next()}))
	err := l.answers(netip.AddrPortFrom(ip, lab.ServicePort))
	return time.Since(begin), err
}

// replacedEndpoint returns the time from the API server having another endpoint of a Service until the kernel has it.
// No client notices: it may be one of 100,000. So the kernel's notifications say it.
func (l *routedLive) replacedEndpoint() (took time.Duration, err error) {
	time.Sleep(rest)
	var notices *lab.Notices
	if err := l.space.Do(func() (err error) {
		notices, err = lab.Listen()
		return err
	}); err != nil {
		return 0, err
	}
	l.replacements++
	slice, _, came := l.replacement(rand.New(rand.NewPCG(9, uint64(l.replacements))))
	begin, heard := time.Now(), make(chan error, 1)
	go func() { heard <- awaitNotice(notices, lab.About(string(came.AsSlice()))) }()
	l.server.Apply(slice)
	select {
	case err = <-heard:
		took = time.Since(begin)
	case <-time.After(patience):
		err = tooLate(fmt.Sprintf("the kernel does not have %s within %s", came, patience))
	}
	return took, errors.Join(err, notices.Close())
}

// awaitNotice receives until one notice is wanted, or the notices are closed.
func awaitNotice(notices *lab.Notices, wanted func(lab.Notice) bool) error {
	for {
		list, err := notices.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // some were lost; perhaps not the wanted one
			return err
		}
		if slices.ContainsFunc(list, wanted) {
			return nil
		}
	}
}

// writeTable writes a table in Markdown: a row for each cluster and what was measured there, a column for each
// contender.
func (t *trial) writeTable(w io.Writer) {
	fmt.Fprintf(w, "| cluster | measured | %s |\n|---|---|%s\n", strings.Join(t.names, " | "),
		strings.Repeat("--:|", len(t.names)))
	for _, at := range t.sizes {
		cluster := at.String()
		for _, what := range comparedRows {
			fmt.Fprintf(w, "| %s | %s |", cluster, what)
			cluster = ""
			for _, name := range t.names {
				fmt.Fprintf(w, " %s |", t.sheet.text(at, rowName(what, name)))
			}
			fmt.Fprintln(w)
		}
	}
	for _, line := range t.gaveUp {
		fmt.Fprintf(w, "\n%s.\n", line)
	}
}

// write writes the page and the benchmark lines into a directory.
func (t *trial) write(dir string, arguments []string) error {
	var bench, page bytes.Buffer
	t.sheet.writeBench(&bench)
	fmt.Fprintf(&page, comparePage, machine(), strings.Join(arguments, " "), time.Now().UTC().Format(time.DateOnly),
		t.loads[0], t.loads[1], clientThreads, changesPerSecond, grace)
	t.writeTable(&page)
	return errors.Join(os.WriteFile(filepath.Join(dir, "compare.txt"), bench.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, "compare.md"), page.Bytes(), 0o644))
}

const comparePage = `# Beside kube-proxy

Written by ` + "`make compare`" + `, integration/scale; do not edit. [Performance](../../docs/performance.md#beside-kube-proxy)
says how to read it.

- Machine: %s
- Command: %s
- Date: %s
- Load average before and after: %s; %s

A client, a node and the endpoints are three network namespaces of one machine, which also runs the API server. The
contenders run on the node one after the other, in the same cluster. %d clients make connections, each to a Service
chosen at random; the endpoint closes it at once. Their CPU time includes what the kernel does with the packets, so that
it depends less on other work of the machine. A connect takes from the system call until the handshake is done. "Under
change" means that %d endpoints a second are replaced; one that left answers for %s more, then refuses. CPU time and the
highest RSS include programs that a proxy runs, such as nft; the other RSS does not. The kernel's tables are in neither.

`

// loadAverage is the load of the last minute and of the last five.
func loadAverage() string {
	content, _ := os.ReadFile("/proc/loadavg") // without it the page says nothing
	fields := strings.Fields(string(content))
	return strings.Join(fields[:min(2, len(fields))], ", ")
}
