package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/nft/words"
)

// An answer is what a command of the program printed on a node.
type answer struct {
	Node string `json:"node"`
	Text string `json:"text,omitempty"`
	// Found says that the command ended with 1: it has found something.
	Found bool `json:"found,omitempty"`
	// Problem is why there is no answer.
	Problem string `json:"problem,omitempty"`
}

// maxAnswers bounds what all nodes together may print. Tests lower it.
var maxAnswers int64 = 1 << 30

// errTooMuch is the problem of a node whose answer is not kept.
var errTooMuch = errors.New("all answers together are too long: ask fewer nodes at a time")

// answers runs a command on all members. Those that do not answer have a problem, and so have those whose answers are
// too much for the memory here.
func (c *cluster) answers(ctx context.Context, members []member, args []string) ([]answer, error) {
	list := make([]answer, len(members))
	var kept atomic.Int64
	for i := range members {
		list[i].Node = members[i].node.Name
		_, list[i].Problem = members[i].state()
	}
	err := c.ask(ctx, members, func(ctx context.Context, i int, pod *corev1.Pod) error {
		text, found, err := c.read(ctx, pod, args)
		if kept.Add(int64(len(text))) > maxAnswers {
			kept.Add(-int64(len(text)))
			text, found, err = nil, false, errTooMuch
		}
		list[i] = answer{Node: list[i].Node, Text: string(text), Found: found}
		if err != nil && !found {
			list[i].Problem = err.Error()
		}
		return err
	})
	return list, err
}

// writeGroups prints one text for each group of nodes with the same essence, then the problems. It returns an error if
// a node has no answer.
func writeGroups(w io.Writer, answers []answer) error {
	groups := make(map[string][]answer)
	var keys []string
	var problems []answer
	for _, a := range answers {
		if a.Problem != "" {
			problems = append(problems, a)
			continue
		}
		k := essence(a.Text)
		if groups[k] == nil {
			keys = append(keys, k)
		}
		groups[k] = append(groups[k], a)
	}
	slices.SortStableFunc(keys, func(a, b string) int { return len(groups[b]) - len(groups[a]) })
	for i, k := range keys {
		if i > 0 {
			fmt.Fprintln(w)
		}
		first := groups[k][0]
		head := first.Node
		if n := len(groups[k]); n > 1 {
			var nodes []string
			for _, a := range groups[k] {
				nodes = append(nodes, a.Node)
			}
			head = fmt.Sprintf("%s (%s), as %s says", words.Plural(n, "node"), some(nodes), head)
		}
		fmt.Fprintf(w, "%s:\n%s\n", head, strings.TrimRight(first.Text, "\n"))
	}
	return writeProblems(w, problems)
}

// writeProblems prints why nodes have no answer, and returns an error if there are such nodes.
func writeProblems(w io.Writer, problems []answer) error {
	if len(problems) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	for _, a := range problems {
		fmt.Fprintf(w, "%s: %s\n", a.Node, a.Problem)
	}
	return noAnswer(problems)
}

// noAnswer returns an error if there are nodes without an answer.
func noAnswer(problems []answer) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("no answer from %s", words.Plural(len(problems), "node"))
}
