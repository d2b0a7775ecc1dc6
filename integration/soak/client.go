package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A client asks at one frontend of a Service.
type client struct {
	id      int
	service string
	network string // tcp or udp
	lasting bool   // one socket for all questions
	from    netip.Addr
	to      netip.AddrPort
	turns   []netip.AddrPort // frontends that are asked one after the other instead of to
	loyal   bool             // the Service has session affinity, and no other client has the address from
	rules

	// The rest is owned by run.
	conn     net.Conn // nil if there is none
	lines    *bufio.Reader
	peer     netip.Addr // who has answered on a lasting TCP connection
	bound    netip.Addr // who is to answer a loyal client, unless it was taken out
	leaves   int        // how often bound had been taken out before
	requests int

	mu    sync.Mutex
	tally tally
}

// rules are what all clients have in common.
type rules struct {
	ledger   *ledger
	desks    *desks
	hurry    *atomic.Bool // a Service that does not answer at once is counted as not answering
	strict   bool         // no exchange may fail
	complain func(error)  // about what ends the run
	pulse    *pulse       // by which slow answers and outages are measured
}

// How long a client waits for a connection and then for an answer, in a hurry and without. TCP
// has sent its first packet for a fourth time by then; UDP does not send anything again.
const (
	hurriedPatience = 500 * time.Millisecond
	patienceTCP     = 10 * time.Second
	patienceUDP     = 3 * time.Second
)

// patience is how long the client waits for an answer now.
func (c *client) patience() time.Duration {
	switch {
	case c.hurry.Load():
		return hurriedPatience
	case c.network == "udp":
		return patienceUDP
	}
	return patienceTCP
}

// A tally is what became of a client's questions.
type tally struct {
	answers  int
	lost     int
	inFlight int           // of UDP, lost on the way back
	slowest  time.Duration // answer
	outage   time.Duration // the longest, from a question without an answer to the next answer

	cutOff  int           // how many exchanges were lost in flight since the latest answer
	cutAt   time.Time     // when the first of these ended
	trace   []string      // the exchanges without an answer since the latest answer
	failing bool          // there is an outage, which began
	since   time.Duration // with the exchange at this time of the pulse
	failed  time.Time     // when the latest exchange began that failed
}

func (c *client) String() string {
	kind := "new"
	if c.lasting {
		kind = "lasting"
	}
	return fmt.Sprintf("%s (%s) to %s at %s", c.network, kind, c.service, c.to)
}

// pause is what a client waits between two exchanges.
const pause = 50 * time.Millisecond

// run asks until ctx ends.
func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.request(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	c.hangUp()
}

// request asks once and notes what comes of it.
func (c *client) request(ctx context.Context) {
	if len(c.turns) > 0 {
		c.to = c.turns[c.requests%len(c.turns)]
	}
	may, left := c.ledger.of(c.service)
	started, since := time.Now(), c.pulse.now()
	by, err := c.exchange(ctx)
	if ctx.Err() != nil {
		return
	}
	mayNow, leftNow := c.ledger.of(c.service)
	if err != nil {
		c.lose(started, since, err, func(at netip.Addr) bool { return left[at] || leftNow[at] })
		return
	}
	c.note(since)
	switch {
	case c.peer.IsValid() && by != c.peer:
		c.complain(fmt.Errorf("%s was answered by %s and then by %s", c, c.peer, by))
	case !c.peer.IsValid() && !may[by] && !mayNow[by]:
		c.complain(fmt.Errorf("%s was answered by %s, which has not been an endpoint since the last calm", c, by))
	case c.lasting && c.network == "tcp":
		c.peer = by
	case c.loyal:
		c.bind(by)
	}
}

// bind complains if another endpoint has answered than the time before, although that one has been
// there all the time. Where others delete our tables, entries are lost with them.
func (c *client) bind(by netip.Addr) {
	if c.bound.IsValid() && by != c.bound && c.strict {
		if leaves, _ := c.ledger.leaves(c.service, c.bound); leaves == c.leaves {
			c.complain(fmt.Errorf("%s was answered by %s and then by %s, although the first one stayed", c, c.bound, by))
		}
	}
	c.bound = netip.Addr{}
	if leaves, stays := c.ledger.leaves(c.service, by); stays {
		c.bound, c.leaves = by, leaves
	}
}

// exchange asks once and returns who answered. A socket that does not last is closed, and so
// is a connection that failed; a lasting UDP socket stays whatever happens.
func (c *client) exchange(ctx context.Context) (by netip.Addr, err error) {
	defer func() {
		if !c.lasting || err != nil && c.network == "tcp" {
			c.hangUp()
		}
	}()
	c.requests++
	if c.conn == nil {
		if err := c.connect(ctx); err != nil {
			return by, err
		}
	}
	if _, err := fmt.Fprintf(c.conn, questionFormat, c.id, c.requests, c.service); err != nil {
		return by, err
	}
	if err := c.conn.SetReadDeadline(time.Now().Add(c.patience())); err != nil {
		return by, err
	}
	return c.read()
}

// grace is for an answer that comes although its time is over: while the machine stands still,
// all deadlines pass.
const grace = 500 * time.Millisecond

// read waits for the answer to the latest question.
func (c *client) read() (by netip.Addr, err error) {
	for late := false; ; {
		line, err := c.lines.ReadString('\n')
		if errors.Is(err, os.ErrDeadlineExceeded) && !late {
			late = true
			err = c.conn.SetReadDeadline(time.Now().Add(grace))
			if err == nil {
				continue
			}
		}
		if err != nil {
			return by, err
		}
		var number int
		var text string
		if _, err := fmt.Sscanf(line, answerFormat, &number, &text); err != nil {
			return by, fmt.Errorf("answer %q: %w", line, err)
		}
		if number == c.requests { // else it is late
			return netip.ParseAddr(text)
		}
	}
}

// The ports of loyal clients, which have addresses of their own.
const (
	firstPort = 20_000
	numPorts  = 40_000
)

// connect opens the socket.
func (c *client) connect(ctx context.Context) (err error) {
	dialer := net.Dialer{Timeout: c.patience(), LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.from, 0))}
	if c.network == "udp" {
		port := uint16(0)
		if c.loyal { // a port that comes again soon has a conntrack entry, maybe to an endpoint that left and came back
			port = firstPort + uint16(c.requests%numPorts)
		}
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.from, port))
	}
	if c.conn, err = dialer.DialContext(ctx, c.network, c.to.String()); err != nil {
		c.conn = nil
		return err
	}
	c.lines = bufio.NewReaderSize(c.conn, lineLen)
	return nil
}

// hangUp closes the socket, TCP by a reset: thousands of connections that linger on both
// sides would leave no room for others.
func (c *client) hangUp() {
	if c.conn == nil {
		return
	}
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it, closing takes longer
	}
	_ = c.conn.Close() // nothing is unwritten
	c.conn, c.peer = nil, netip.Addr{}
}

// note counts an answer to a question that was asked at a time of the pulse.
func (c *client) note(since time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.pulse.now()
	c.tally.answers++
	c.tally.slowest = max(c.tally.slowest, now-since)
	c.tally.fails(now)
	c.tally.failing, c.tally.cutOff, c.tally.trace = false, 0, nil
}

// fails counts the outage that is under way, if there is one.
func (t *tally) fails(now time.Duration) {
	if t.failing {
		t.outage = max(t.outage, now-t.since)
	}
}

// cleanUp is how long packets may follow an affinity entry to an endpoint that has left and are dropped: a reading of
// the map can miss the entry, and the next one comes a second later, on a busy machine a little more.
const cleanUp = 3 * time.Second

// maxTrace is how many exchanges without an answer a complaint tells of.
const maxTrace = 20

// lose counts a question without an answer. Left says whether an endpoint has been taken out.
func (c *client) lose(started time.Time, since time.Duration, err error, left func(netip.Addr) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tally.cutOff == 0 {
		c.tally.cutAt = time.Now()
	}
	if len(c.tally.trace) < maxTrace {
		c.tally.trace = append(c.tally.trace, fmt.Sprintf("%s to %s: %v", started.Format("15:04:05.000"), c.to, err))
	}
	again := c.tally.cutOff > 0
	if c.loyal { // an answer in flight, and then the packets that follow the affinity entry
		again = again && time.Since(c.tally.cutAt) > cleanUp
	}
	again = again || c.tally.failing
	at, arrived := c.desks.arrival(c.id, c.requests)
	c.tally.failed = started
	if c.network == "udp" && !again && (arrived && left(at) || !arrived && c.forgotten()) {
		c.tally.inFlight, c.tally.cutOff = c.tally.inFlight+1, c.tally.cutOff+1
		return
	}
	if !c.tally.failing {
		c.tally.failing, c.tally.since = true, since
	}
	c.tally.fails(c.pulse.now())
	c.tally.lost++
	if !c.strict {
		return
	}
	where := "it reached no server"
	if arrived {
		where = fmt.Sprintf("it reached %s, which answered", at)
	}
	if again {
		where += "; so failed, since the last answer: " + strings.Join(c.tally.trace, ", ")
	}
	if c.bound.IsValid() {
		where += fmt.Sprintf("; it has affinity to %s", c.bound)
	}
	if errors.Is(err, syscall.EPERM) {
		where += "; the kernel dropped what the node sent:\n" + c.evidence()
	}
	c.complain(fmt.Errorf("%s failed after %s: %w; %s", c, time.Since(started).Round(time.Millisecond), err, where))
}

// evidence is what tells rules that drop from connection tracking that does: its counters, the client's entries, the
// verdict of the frontend, and the endpoints that affinity entries may name.
func (c *client) evidence() string {
	family, long := "ip", "ipv4"
	if c.to.Addr().Is6() {
		family, long = "ip6", "ipv6"
	}
	var text strings.Builder
	for _, command := range [][]string{
		{"conntrack", "-S"},
		{"conntrack", "-L", "-f", long, "-p", c.network, "--orig-src", c.from.String(), "--orig-dst", c.to.Addr().String()},
		{"nft", "get", "element", family, "kube-nft", "services",
			fmt.Sprintf("{ %s . %s . %d }", c.to.Addr(), c.network, c.to.Port())},
		{"nft", "list", "set", family, "kube-nft", "members"},
	} {
		out, err := run(command...)
		if err != nil { // a node port is in another map, for one thing
			out = err.Error() + "\n"
		}
		fmt.Fprintf(&text, "%s\n%s", strings.Join(command, " "), out)
	}
	return text.String()
}

// forgotten reports whether the endpoint that a loyal client has an entry for may have left: the
// packet that follows the entry before it has been cleaned up is dropped with it, and the next one
// goes to another endpoint. TCP sends its first packet again.
func (c *client) forgotten() bool {
	if !c.loyal || !c.bound.IsValid() {
		return c.loyal
	}
	leaves, _ := c.ledger.leaves(c.service, c.bound)
	return leaves != c.leaves
}

// count returns the tally so far.
func (c *client) count() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tally
}
