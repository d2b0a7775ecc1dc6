package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A bench is a client of Service rolling with a server that answers as a test likes.
type bench struct {
	*client
	complaints chan string
	at         atomic.Pointer[netip.Addr] // where the server says that it is; nil: it does not answer
}

// newBench returns a client that asks by UDP over one socket.
func newBench(t *testing.T) *bench {
	packets, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{complaints: make(chan string, 8)}
	complain := func(err error) { b.complaints <- err.Error() }
	r := rules{ledger: newLedger(), desks: &desks{wrong: complain, latest: make(map[int]delivery)},
		hurry: new(atomic.Bool), strict: true, complain: complain, pulse: new(pulse)}
	b.client = &client{
		service: "rolling", network: "udp", lasting: true, rules: r,
		from: netip.MustParseAddr("127.0.0.1"), to: packets.LocalAddr().(*net.UDPAddr).AddrPort(),
	}
	t.Cleanup(func() { packets.Close(); b.hangUp() })
	go func() {
		var buf [lineLen]byte
		for {
			n, from, err := packets.ReadFrom(buf[:])
			if err != nil {
				return
			}
			if at := b.at.Load(); at != nil {
				answer := b.desks.answer(string(buf[:n]), *at)
				packets.WriteTo([]byte(fmt.Sprintf(answerFormat, 0, *at)+answer), from) // a late answer before
			}
		}
	}()
	return b
}

// requestAt asks once, while the server is somewhere or nowhere, and returns the complaints.
func (b *bench) requestAt(at *netip.Addr) string {
	b.at.Store(at)
	b.hurry.Store(at == nil) // what comes is waited for
	b.request(context.Background())
	return b.heard()
}

// heard returns the complaints since it was called last.
func (b *bench) heard() string {
	var all []string
	for len(b.complaints) > 0 {
		all = append(all, <-b.complaints)
	}
	return strings.Join(all, "\n")
}

func TestClientJudges(t *testing.T) {
	b := newBench(t)
	mine, yours := families[0].serverOf(rolling, 0), families[0].serverOf(0, 0)
	b.ledger.set("rolling", "slice", []netip.Addr{mine, yours})
	if got := b.requestAt(&mine); got != "" {
		t.Errorf("an endpoint answers: %s", got)
	}
	const foreign = "a question for Service rolling came to 10.135.208.1, a server of steady"
	if got := b.requestAt(&yours); got != foreign {
		t.Errorf("a server of another Service answers: %q", got)
	}
	b.ledger.set("rolling", "slice", []netip.Addr{families[0].serverOf(rolling, 1)})
	if got := b.requestAt(&mine); got != "" {
		t.Errorf("an endpoint of before answers: %s", got)
	}
	b.ledger.settled()
	want := fmt.Sprintf("%s was answered by %s, which has not been an endpoint since the last calm", b.client, mine)
	if got := b.requestAt(&mine); got != want {
		t.Errorf("an endpoint of before the calm answers: %q, want %q", got, want)
	}
	if got := b.count(); got.answers != 4 || got.lost != 0 || got.inFlight != 0 {
		t.Errorf("counted %+v", got)
	}
}

func TestClientLoses(t *testing.T) {
	b := newBench(t)
	mine := families[0].serverOf(rolling, 0)
	b.ledger.set("rolling", "slice", []netip.Addr{mine})
	if got := b.requestAt(nil); !strings.Contains(got, "i/o timeout; it reached no server") {
		t.Errorf("no server answers, but the client says %q", got)
	}
	b.requestAt(&mine)
	arrived := func(left bool) string {
		b.requests++
		b.desks.answer(fmt.Sprintf(questionFormat, b.id, b.requests, b.service), mine)
		b.lose(time.Now(), 0, context.DeadlineExceeded, func(netip.Addr) bool { return left })
		return b.heard()
	}
	if got := arrived(true); got != "" {
		t.Errorf("an answer of an endpoint that was taken out is lost: %s", got)
	}
	if got := arrived(true); !strings.Contains(got, "it reached "+mine.String()+", which answered") {
		t.Errorf("two in a row are lost: %q", got)
	}
	b.requestAt(&mine)
	if got := arrived(false); !strings.Contains(got, "it reached "+mine.String()+", which answered") {
		t.Errorf("an answer of an endpoint that stays is lost: %q", got)
	}
	if got := b.count(); got.answers != 2 || got.lost != 3 || got.inFlight != 1 {
		t.Errorf("counted %+v", got)
	}
}

// TestClientIsRefused: a complaint about a packet that the node's own kernel has dropped says what it is made of.
func TestClientIsRefused(t *testing.T) {
	b := newBench(t)
	b.requests++
	b.lose(time.Now(), 0, syscall.EPERM, func(netip.Addr) bool { return false })
	got := b.heard()
	for _, want := range []string{
		"conntrack -S\n", "conntrack -L -f ipv4 -p udp", "nft get element ip kube-nft services { ",
		"nft list set ip kube-nft members\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the complaint lacks %q:\n%s", want, got)
		}
	}
}

// TestAffinityCheck: another endpoint may answer only if the first one was taken out, or may have been
// when it answered.
func TestAffinityCheck(t *testing.T) {
	b := newBench(t)
	b.lasting, b.loyal = false, true
	first, second := families[0].serverOf(rolling, 0), families[0].serverOf(rolling, 1)
	both, one := []netip.Addr{first, second}, []netip.Addr{second}
	b.ledger.set(b.service, "slice", both)
	unfaithful := func(from, to netip.Addr) string {
		return fmt.Sprintf("%s was answered by %s and then by %s, although the first one stayed", b.client, from, to)
	}
	ask := func(when string, at netip.Addr, want string) {
		t.Helper()
		if got := b.requestAt(&at); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	ask("the first question", first, "")
	ask("the same", first, "")
	ask("another one", second, unfaithful(first, second))
	ask("back", first, unfaithful(second, first))
	b.ledger.set(b.service, "slice", one)
	ask("it was taken out", second, "")
	b.ledger.set(b.service, "slice", both)
	ask("it is back", first, unfaithful(second, first))
	ask("the kernel may have taken it out only now", second, "")
	b.ledger.settled()
	ask("a calm", second, "")
	ask("another one after the calm", first, unfaithful(second, first))
	b.strict = false
	ask("where others delete our tables", second, "")
}

// TestClientIsForgotten: packets that follow an affinity entry of an endpoint that was taken out may be lost until the
// entry must have gone.
func TestClientIsForgotten(t *testing.T) {
	b := newBench(t)
	b.lasting, b.loyal = false, true
	first, second := families[0].serverOf(rolling, 0), families[0].serverOf(rolling, 1)
	b.ledger.set(b.service, "slice", []netip.Addr{first, second})
	b.requestAt(&first)
	lose := func() string {
		b.requests++
		b.lose(time.Now(), 0, context.DeadlineExceeded, func(netip.Addr) bool { return false })
		return b.heard()
	}
	if got := lose(); !strings.Contains(got, "it reached no server") {
		t.Errorf("the endpoint stays: %q", got)
	}
	b.requestAt(&first)
	b.ledger.set(b.service, "slice", []netip.Addr{second})
	if got := lose(); got != "" {
		t.Errorf("the endpoint was taken out: %q", got)
	}
	if got := lose(); got != "" {
		t.Errorf("the next one: %q", got)
	}
	b.tally.cutAt = b.tally.cutAt.Add(-2 * cleanUp)
	if got := lose(); !strings.Contains(got, "it reached no server") {
		t.Errorf("after the time of the clean-up: %q", got)
	}
}
