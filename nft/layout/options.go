package layout

import (
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// options are what a Service port can ask for by annotations, as far as its chains do not show it: the word that stands
// in the comment of its elements, and the annotation.
var options = []struct {
	word, annotation string
	of               func(p *tracker.ServicePort) bool
}{
	{"reset-departed", "connections-of-departed: reset", func(p *tracker.ServicePort) bool {
		return p.Settings.ResetDeparted && p.ID.Protocol != tracker.UDP
	}},
	{"keep-unready", "udp-unready: keep", func(p *tracker.ServicePort) bool {
		return p.Settings.KeepUnreadyUDP && p.ID.Protocol == tracker.UDP
	}},
	{"local-fallback", "local-fallback: cluster", func(p *tracker.ServicePort) bool {
		return p.Settings.LocalFallback && (p.InternalLocal || p.ExternalLocal)
	}},
	{"ping", "ping: true", func(p *tracker.ServicePort) bool { return p.Settings.Ping }},
	{"node-port-ranges", "source-ranges-for-node-ports: true", func(p *tracker.ServicePort) bool { return p.NodePortGuarded }},
}

// Words in the comments of the elements of load-balancer addresses: of ipMode VIP, and of ipMode Router.
const (
	LoadBalancerWord = "load-balancer"
	RouterWord       = "router"
)

// CommentWith is the comment of an element of a Service port: Comment and, after a blank and with commas, kind, which
// is LoadBalancerWord, RouterWord or empty, and the words of the annotations in force. A comment has 127 bytes: where
// the name is nearly as long, these words are missing.
func CommentWith(p *tracker.ServicePort, kind string) string {
	name, words := Comment(p.ID), ""
	if kind != "" {
		words = "," + kind
	}
	for i := range options {
		if options[i].of(p) {
			words += "," + options[i].word
		}
	}
	if words == "" {
		return name
	}
	return nft.PlainComment(name + " " + words[1:])
}

// NameIn is the part of a comment that names the Service port.
func NameIn(comment string) string {
	name, _, _ := strings.Cut(comment, " ")
	return name
}

// An Option is what a Service port asks for by an annotation.
type Option struct {
	Word       string // as in the comment
	Annotation string // as "key: value"
}

// Options lists all that a comment can show.
func Options() (list []Option) {
	for i := range options {
		list = append(list, Option{options[i].word, tracker.AnnotationPrefix + options[i].annotation})
	}
	return list
}

// HasWord reports whether a comment has a word behind the name of the Service port.
func HasWord(comment, word string) bool {
	_, words, _ := strings.Cut(comment, " ")
	return slices.Contains(strings.Split(words, ","), word)
}

// ParseOptions returns the annotations that a comment shows.
func ParseOptions(comment string) (annotations []string) {
	for _, option := range Options() {
		if HasWord(comment, option.Word) {
			annotations = append(annotations, option.Annotation)
		}
	}
	return annotations
}
