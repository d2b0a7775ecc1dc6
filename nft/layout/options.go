package layout

import (
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// options are the annotations that comments show.
var options = tracker.Options()

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
	for _, option := range options {
		if option.InForce(p) {
			words += "," + option.Word
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

// HasWord reports whether a comment has a word behind the name of the Service port.
func HasWord(comment, word string) bool {
	_, words, _ := strings.Cut(comment, " ")
	return slices.Contains(strings.Split(words, ","), word)
}

// ParseOptions returns the annotations that a comment shows.
func ParseOptions(comment string) (annotations []string) {
	for _, option := range options {
		if HasWord(comment, option.Word) {
			annotations = append(annotations, option.Annotation)
		}
	}
	return annotations
}
