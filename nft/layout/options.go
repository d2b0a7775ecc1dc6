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

// CommentWith is the comment of a Service port's elements: Comment and, after a blank, the words of its
// options with commas. A plain Service port has none. Of very long names the options are missing.
func CommentWith(p *tracker.ServicePort) string {
	name, words := Comment(p.ID), ""
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

// ParseOptions returns the annotations that a comment shows.
func ParseOptions(comment string) (annotations []string) {
	_, words, found := strings.Cut(comment, " ")
	if !found {
		return nil
	}
	for _, option := range Options() {
		if slices.Contains(strings.Split(words, ","), option.Word) {
			annotations = append(annotations, option.Annotation)
		}
	}
	return annotations
}
