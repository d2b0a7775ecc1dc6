package inspect

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// step is a step of packet id in a chain of ours.
func step(id uint32, handle uint64, verdict nft.Verdict) kernel.PacketEvent {
	return kernel.PacketEvent{
		ID: id, Family: nft.IP, Table: nft.TableName, Chain: "services", Handle: handle, Verdict: verdict, Protocol: 6,
		Source: netip.MustParseAddrPort("192.0.2.1:1000"), Destination: netip.MustParseAddrPort("10.96.0.10:80"),
	}
}

func emptyJourneys() *journeys {
	return &journeys{underWay: make(map[uint32]*journey), known: &programmed{frontends: new(frontends)}}
}

// TestJourneys: a packet ends when it is dropped, when nothing more comes of it, and when too many are under way.
func TestJourneys(t *testing.T) {
	w, now := emptyJourneys(), time.Unix(1000, 0)
	taken := func() string {
		var ids []uint32
		for _, j := range w.ended(now) {
			ids = append(ids, j.id)
		}
		return fmt.Sprint(ids)
	}
	goesOn := nft.Verdict{Kind: -1}
	w.add(step(1, 0, goesOn), now)
	w.add(step(2, 0, nft.Drop), now)
	w.add(step(2, 0, goesOn), now) // another packet: the first one is gone
	w.add(step(3, 7, goesOn), now)
	if got := taken(); got != "[2]" {
		t.Errorf("after a drop: %s", got)
	}
	if !w.known.stale {
		t.Error("a rule that is not known lets nothing be read again")
	}
	now = now.Add(journeyEnd)
	w.add(step(1, 0, goesOn), now)
	now = now.Add(sweepInterval)
	if got := taken(); got != "[2 3]" {
		t.Errorf("after a silence: %s", got)
	}
	for id := range uint32(maxJourneys) {
		w.add(step(10+id, 0, goesOn), now)
	}
	if got := taken(); got != "[1]" || len(w.underWay) != maxJourneys {
		t.Errorf("too many: %s, %d under way", got, len(w.underWay))
	}
	now = now.Add(2 * journeyEnd)
	if got := len(w.ended(now)); got != maxJourneys || len(w.underWay) != 0 || len(w.order) != 0 {
		t.Errorf("at the end: %d, %d, %d", got, len(w.underWay), len(w.order))
	}
}

// TestJourneysUnknownRule: the text of a rule is there if the tables were read between the step and the print.
func TestJourneysUnknownRule(t *testing.T) {
	w, now := emptyJourneys(), time.Unix(1000, 0)
	w.add(step(1, 7, nft.Drop), now)
	reject := nft.Rule{nft.RejectTCP{}}
	w.known.rules = map[nft.Family]map[uint64]nft.Rule{nft.IP: {7: reject}}
	p := w.packet(w.ended(now)[0])
	if want := "rejected in table ip kube-nft, chain services"; p.Outcome != want ||
		p.Steps[0].Rule != reject.Text(nft.IP) {
		t.Errorf("%s, %+v; want %s", p.Outcome, p.Steps, want)
	}
}

// BenchmarkJourneys is a step while as many packets as possible are under way.
func BenchmarkJourneys(b *testing.B) {
	for _, packets := range []uint32{10, maxJourneys, 10 * maxJourneys} {
		b.Run(fmt.Sprintf("packets=%d", packets), func(b *testing.B) {
			w, now := emptyJourneys(), time.Unix(1000, 0)
			e := step(0, 0, nft.Verdict{Kind: -1})
			for i := 0; b.Loop(); i++ {
				e.ID = uint32(i) % packets
				now = now.Add(time.Microsecond)
				w.add(e, now)
				w.ended(now)
			}
		})
	}
}
