package inspect

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/firewall"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// Limits of the packets that are kept until their last step arrives.
const (
	maxJourneys   = 1000 // packets whose steps are still coming
	maxTraceSteps = 500  // of one packet; a longer way is cut
	// journeyEnd is how long after its last step a packet counts as gone: nothing says that a step was the last.
	journeyEnd = 200 * time.Millisecond
	// sweepInterval is the time between two looks for packets that are gone.
	sweepInterval = journeyEnd / 4
	// refreshInterval is the time between two readings of the tables, at least: meanwhile steps wait in the receive
	// buffer.
	refreshInterval = time.Second
)

// journeys makes ways of packets from their steps.
type journeys struct {
	underWay map[uint32]*journey // by the kernel's number of the packet
	order    []*journey          // those under way, in the order of their first steps, and some that have ended
	over     []*journey          // not yet taken
	sweepAt  time.Time

	known *programmed
}

// programmed has the rules and frontends of our tables, to describe steps and packets.
type programmed struct {
	look      *inspection
	rules     map[nft.Family]map[uint64]nft.Rule // by handle
	frontends *frontends

	stale     bool // a step met a rule that is not known
	checkAt   time.Time
	refreshAt time.Time
}

// A journey is the way of one packet.
type journey struct {
	id    uint32
	began time.Time
	last  time.Time
	first kernel.PacketEvent // with the packet as it came
	now   kernel.PacketEvent // with the packet as it was seen last
	steps []TraceStep
	cut   bool
	over  bool
	// dropped is the step that ended it, if one did, and by the rule, if that was known then.
	dropped *kernel.PacketEvent
	by      nft.Rule
}

// A TraceStep is one rule, or the end of a chain.
type TraceStep struct {
	Family  string `json:"family"`
	Table   string `json:"table"`
	Chain   string `json:"chain"`
	Rule    string `json:"rule,omitempty"`
	Handle  uint64 `json:"handle,omitempty"`
	Verdict string `json:"verdict"`

	family nft.Family
}

// newJourneys reads the rules; look has the frontends already.
func newJourneys(ctx context.Context, look *inspection) (*journeys, error) {
	known := &programmed{look: look}
	return &journeys{underWay: make(map[uint32]*journey), known: known}, known.read(ctx)
}

// read computes programmed from the tables of the inspection.
func (p *programmed) read(ctx context.Context) error {
	rules := make(map[nft.Family]map[uint64]nft.Rule)
	for f := range p.look.tables {
		var err error
		if rules[f], err = p.look.kernel.RulesByHandle(ctx, f); err != nil {
			return err
		}
	}
	p.frontends, p.rules = p.look.frontends(), rules
	return nil
}

// rule returns the rule of a step, and writes its text into the step. A rule of ours that is not known has been made
// since.
func (p *programmed) rule(step *TraceStep) nft.Rule {
	if step.Table != nft.TableName || step.Handle == 0 {
		return nil
	}
	rule := p.rules[step.family][step.Handle]
	if rule == nil {
		p.stale = true
		return nil
	}
	step.Rule = rule.Text(step.family)
	return rule
}

// refresh reads the tables again after a commit or for an unknown rule, at most once in refreshInterval.
// Tables that cannot be read end nothing: handles say which rules packets met.
func (w *journeys) refresh(ctx context.Context) {
	p, began := w.known, time.Now()
	if began.Before(p.refreshAt) || !p.stale && began.Before(p.checkAt) {
		return
	}
	p.checkAt = began.Add(sweepInterval)
	generation, err := p.look.kernel.Generation(ctx)
	if err == nil && generation == p.look.generation && !p.stale {
		return
	}
	if err == nil {
		err = p.look.read(ctx)
	}
	if err == nil {
		err = p.read(ctx)
	}
	p.stale = err != nil
	now := time.Now()
	p.refreshAt = now.Add(max(refreshInterval, retry.Rest(now.Sub(began))))
	for _, j := range w.underWay { // none ends because its next steps waited meanwhile
		j.last = now
	}
}

// add adds a step to its packet's way.
func (w *journeys) add(e kernel.PacketEvent, now time.Time) {
	if strings.HasPrefix(e.Table, kernel.TracePrefix) {
		e.Chain = "" // only its packet is of interest
	}
	j := w.underWay[e.ID]
	if j == nil {
		w.makeRoom()
		j = &journey{id: e.ID, began: now, first: e}
		w.underWay[e.ID] = j
		w.order = append(w.order, j)
	}
	j.last = now
	if e.Source.Addr().IsValid() {
		if !j.first.Source.Addr().IsValid() {
			j.first = e
		}
		j.now = e
	}
	if e.Chain == "" {
		return
	}
	if len(j.steps) == maxTraceSteps {
		j.cut = true
		return
	}
	step := TraceStep{Family: e.Family.NFT(), Table: e.Table, Chain: e.Chain, Handle: e.Handle,
		Verdict: verdictWord(e.Verdict), family: e.Family}
	rule := w.known.rule(&step)
	if e.Policy {
		step.Rule = "policy"
	}
	j.steps = append(j.steps, step)
	if e.Verdict.Kind == nft.VerdictDrop {
		j.dropped, j.by = &e, rule
		w.finish(j)
	}
}

// makeRoom ends the oldest packet if there are too many.
func (w *journeys) makeRoom() {
	for len(w.underWay) >= maxJourneys {
		oldest := w.order[0]
		w.order = w.order[1:]
		if !oldest.over {
			w.finish(oldest)
		}
	}
}

func (w *journeys) finish(j *journey) {
	delete(w.underWay, j.id)
	j.over = true
	w.over = append(w.over, j)
}

// ended takes out the ways that are over.
func (w *journeys) ended(now time.Time) (over []*journey) {
	if !now.Before(w.sweepAt) {
		w.sweepAt = now.Add(sweepInterval)
		w.order = slices.DeleteFunc(w.order, func(j *journey) bool {
			if !j.over && now.Sub(j.last) > journeyEnd {
				w.finish(j)
			}
			return j.over
		})
	}
	over, w.over = w.over, nil
	return over
}

// verdictWord is a verdict as nft names it; a rule that decides nothing continues with the next one.
func verdictWord(v nft.Verdict) string {
	const goesOn, leavesRule = -1, -2 // NFT_CONTINUE and NFT_BREAK in linux/netfilter/nf_tables.h
	switch v.Kind {
	case goesOn:
		return "continue"
	case leavesRule:
		return "break"
	}
	return v.String()
}

// endOf says what a verdict that ends a packet did. The kernel reports a rejection as a drop.
func (w *journeys) endOf(rule nft.Rule, e *kernel.PacketEvent) string {
	where := fmt.Sprintf("table %s %s, chain %s", e.Family.NFT(), e.Table, e.Chain)
	for _, stmt := range rule {
		switch stmt.(type) {
		case nft.Reject, nft.RejectTCP:
			return "rejected in " + where
		}
	}
	if e.Policy {
		return "dropped by the policy of " + where
	}
	if firewall.Rejects(context.Background(), w.known.look.kernel, e.Family, e.Table, e.Chain, e.Handle) {
		return "rejected in " + where
	}
	return "dropped in " + where
}

// vanished says what may have become of a packet that our tables have translated and no later hook has seen.
func (w *journeys) vanished(p *TracedPacket, s *readback.Frontend, j *journey) string {
	const text = "translated, then not seen again: "
	family := tracker.FamilyOf(j.first.Destination.Addr())
	if name := firewall.ForwardingOff(family); name != "" {
		return text + "this node forwards no packet, as " + name + " is 0"
	}
	ctx := context.Background()
	rules, err := firewall.Read(ctx, w.known.look.kernel)
	for _, ep := range s.Endpoints().All() {
		if err != nil {
			break
		}
		first := firewall.Packet{Family: family, Source: j.first.Source.Addr(), SourcePort: j.first.Source.Port(),
			Protocol: j.first.Protocol, In: p.In, State: firewall.StateNew}
		if blocker, _ := rules.Refuses(ctx, unix.NF_INET_FORWARD, first.Translated(ep)); blocker != nil {
			return text + blocker.String()
		}
	}
	return text + "dropped by legacy iptables, or by the kernel (no route, rp_filter)"
}

// A TracedPacket is the way of a packet through the rules.
type TracedPacket struct {
	metav1.TypeMeta
	Origin
	Source      string      `json:"source"`
	Destination string      `json:"destination"`
	Protocol    string      `json:"protocol"`
	In          string      `json:"in,omitempty"`
	Service     string      `json:"service,omitempty"`
	Frontend    string      `json:"frontend,omitempty"`
	Policy      string      `json:"policy,omitempty"`
	Endpoint    string      `json:"endpoint,omitempty"`
	Masquerade  bool        `json:"masquerade"`
	Outcome     string      `json:"outcome"`
	Steps       []TraceStep `json:"steps"`
	Cut         bool        `json:"cut,omitempty"`
}

// packet describes a journey that is over.
func (w *journeys) packet(j *journey) *TracedPacket {
	p := &TracedPacket{
		TypeMeta: output.Kind("TracedPacket"),
		Origin:   Origin{Time: j.began}, Source: nft.AddrPortText(j.first.Source),
		Destination: nft.AddrPortText(j.first.Destination), Protocol: protocolText(j.first.Protocol),
		Steps: j.steps, Cut: j.cut, In: interfaceName(j.first.In),
	}
	for i := range j.steps {
		if step := &j.steps[i]; step.Rule == "" {
			w.known.rule(step) // the tables may have been read since
		}
	}
	s, found := w.known.frontends.at(j.first.Destination, tracker.Protocol(j.first.Protocol))
	if found {
		p.Service, p.Frontend, p.Policy = s.Name.String(), s.Kind, s.Policy
	}
	for _, step := range j.steps {
		if step.Table == nft.TableName && strings.Contains(step.Rule, "masquerade") && step.Verdict == nft.Accept.String() {
			p.Masquerade = true
		}
	}
	if now := j.now.Destination; now.IsValid() && now != j.first.Destination {
		p.Endpoint = nft.AddrPortText(now)
	}
	switch {
	case j.dropped != nil:
		if j.by == nil {
			j.by = w.known.rule(&j.steps[len(j.steps)-1])
		}
		p.Outcome = w.endOf(j.by, j.dropped)
	case p.Endpoint != "":
		p.Outcome = "to " + p.Endpoint
		if p.Masquerade {
			p.Outcome += ", masqueraded"
		} else {
			p.Outcome += ", source kept"
		}
	case slices.ContainsFunc(j.steps, TraceStep.translates):
		p.Outcome = w.vanished(p, &s, j)
	default:
		p.Outcome = "went on untranslated"
	}
	if out := interfaceName(j.now.Out); out != "" && j.dropped == nil {
		p.Outcome += ", out by " + out
	}
	return p
}

// Text implements output.Document.
func (p *TracedPacket) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s -> %s/%s", p.Time.Format("15:04:05.000000"), p.Source, p.Destination, p.Protocol)
	if p.In != "" {
		fmt.Fprintf(&b, ", in by %s", p.In)
	}
	if p.Service != "" {
		fmt.Fprintf(&b, "\n  %s of Service %s: %s", p.Frontend, p.Service, p.Policy)
	}
	b.WriteByte('\n')
	width := 0
	for _, s := range p.Steps {
		width = max(width, len(s.where()))
	}
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "    %-*s  %s\n", width, s.where(), s.what())
	}
	if p.Cut {
		fmt.Fprintf(&b, "    ... more than %d steps\n", maxTraceSteps)
	}
	fmt.Fprintf(&b, "  %s\n\n", p.Outcome)
	return b.String()
}

// translates reports whether the step has sent the packet to an endpoint.
func (s TraceStep) translates() bool {
	return s.Table == nft.TableName && s.Verdict == nft.Accept.String() && strings.Contains(s.Rule, "dnat ")
}

// where names the chain, with its table if that is not ours.
func (s *TraceStep) where() string {
	if s.Table == nft.TableName {
		return nft.Visible(s.Chain)
	}
	return nft.Visible(s.Family + " " + s.Table + " " + s.Chain)
}

// what returns the rule's text, and its verdict if the text does not contain it.
func (s *TraceStep) what() string {
	rule := s.Rule
	if rule == "" && s.Handle != 0 {
		rule = fmt.Sprintf("handle %d", s.Handle)
	}
	switch {
	case rule == "":
		return "end of the chain"
	case strings.HasSuffix(rule, s.Verdict), s.Verdict == "continue":
		return nft.Visible(rule)
	}
	return nft.Visible(rule) + ": " + nft.Visible(s.Verdict)
}

// protocolText is the protocol as users write it.
func protocolText(number uint8) string {
	if number == unix.IPPROTO_ICMP || number == unix.IPPROTO_ICMPV6 {
		return "icmp"
	}
	return nft.ProtocolText(number)
}

func interfaceName(index uint32) string {
	if index == 0 {
		return ""
	}
	if i, err := net.InterfaceByIndex(int(index)); err == nil {
		return nft.Visible(i.Name)
	}
	return fmt.Sprintf("interface %d", index)
}
