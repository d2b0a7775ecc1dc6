package inspect

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/words"
)

// An answer is what explain prints.
type answer struct {
	metav1.TypeMeta
	// Verdict is one sentence.
	Verdict     string `json:"verdict"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Interface   string `json:"interface,omitempty"` // if given
	// Outcome is accept (left alone), dnat, drop, reject or redirect (answered by this node).
	Outcome    string          `json:"outcome"`
	Service    *answerService  `json:"service,omitempty"`
	Endpoints  []string        `json:"endpoints,omitempty"`
	Shares     []float64       `json:"shares,omitempty"`  // of the endpoints; missing if they are equal
	Hash       string          `json:"hash,omitempty"`    // what chooses the endpoint: source-ip-port or source-ip
	Masquerade bool            `json:"masquerade"`        // at all endpoints
	Hairpin    []string        `json:"hairpin,omitempty"` // endpoints with masquerading; all others without
	Facts      []readback.Fact `json:"facts"`
	Path       []nft.Step      `json:"path"`             // the rules that applied, in order
	Others     []readback.Fact `json:"others,omitempty"` // what rules of other programs do
	Wanted     string          `json:"wanted,omitempty"` // the verdict by the source, if it differs
	// Elsewhere says that the source is a pod of another node.
	Elsewhere string `json:"elsewhere,omitempty"`
}

type answerService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"`
	Frontend  string `json:"frontend"`
	Kind      string `json:"kind"`
	Policy    string `json:"policy"`
}

func newAnswer(p nft.Packet, e readback.Explanation) *answer {
	a := &answer{
		TypeMeta:    output.Kind("Explanation"),
		Source:      nft.AddrPortText(netip.AddrPortFrom(p.Source, p.SourcePort)),
		Destination: nft.AddrPortText(netip.AddrPortFrom(p.Destination, p.Port)) + "/" + protocolText(p.Protocol),
		Outcome:     e.TraceResult.Outcome,
		Endpoints:   words.Strings(e.Endpoints), Shares: e.Shares, Hash: e.Hash,
		Masquerade: e.Masquerade, Hairpin: words.Strings(e.Hairpin), Facts: e.Facts, Path: e.Steps,
	}
	if p.Interface != unknownInterface {
		a.Interface = p.Interface
	}
	if s := e.Service; s != nil {
		a.Service = &answerService{s.Name.Namespace, s.Name.Name, s.Name.Port, frontendText(s.Frontend), s.Kind, s.Policy}
	}
	a.Verdict = fmt.Sprintf("%s -> %s %s", a.Source, a.Destination, verdictText(p, &e))
	return a
}

// verdictText is what follows "source -> destination".
func verdictText(p nft.Packet, e *readback.Explanation) string {
	switch e.TraceResult.Outcome {
	case "dnat":
		source, target := "its source is kept", fmt.Sprintf("one of %d endpoints", len(e.Endpoints))
		switch {
		case e.Masquerade:
			source = "masqueraded"
		case len(e.Hairpin) > 0:
			source = "masqueraded if that is itself"
		}
		if len(e.Endpoints) == 1 {
			target = e.Endpoints[0].String()
		}
		service := "no Service" // a foreign rule leads to our chain
		if e.Service != nil {
			service = e.Service.Name.String()
		}
		return fmt.Sprintf("goes to %s of %s, %s.", target, service, source)
	case "redirect":
		return "is answered by this node: " + e.Reason + "."
	case "drop":
		return "is dropped: " + e.Reason + "."
	case "reject":
		answered := "ICMP port unreachable"
		if p.Protocol == unix.IPPROTO_TCP {
			answered = "a TCP reset"
		}
		return fmt.Sprintf("is rejected with %s: %s.", answered, e.Reason)
	}
	return "is left alone: " + e.Reason + "."
}

// Widths of the column of topics and of the rest.
const (
	topicWidth = 14
	textWidth  = 100 - topicWidth
)

// indent is what stands below a topic.
var indent = strings.Repeat(" ", topicWidth)

// writeFacts writes facts for people.
func writeFacts(b *strings.Builder, facts []readback.Fact) {
	for _, fact := range facts {
		fmt.Fprintf(b, "%-*s%s", topicWidth, fact.Topic, words.Wrap(fact.Text, textWidth, indent))
		if fact.By != "" {
			b.WriteString(indent + "· " + words.Wrap(fact.By, textWidth-2, indent+"  "))
		}
	}
}

// Text implements output.Document: the verdict, the facts, and the chains on the way.
func (a *answer) Text() string {
	var b strings.Builder
	b.WriteString(words.Wrap(a.Verdict, 100, "  "))
	if a.Elsewhere != "" {
		b.WriteString(words.Wrap("Not the right node: "+a.Elsewhere, 100, "  "))
	}
	if a.Wanted != "" {
		b.WriteString(words.Wrap("The rules for the source's objects give another result: "+a.Wanted, 100, "  "))
		b.WriteString("  kube-nft diff lists all differences.\n")
	}
	b.WriteString("\n")
	writeFacts(&b, a.Facts)
	var chains []string // without repetitions in a row
	for _, step := range a.Path {
		if len(chains) == 0 || chains[len(chains)-1] != step.Chain {
			chains = append(chains, step.Chain)
		}
	}
	fmt.Fprintf(&b, "%-*s%s", topicWidth, "Chains", words.Wrap(strings.Join(chains, " > "), textWidth, indent))
	writeFacts(&b, a.Others)
	return b.String()
}
