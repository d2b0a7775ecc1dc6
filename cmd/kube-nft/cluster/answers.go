package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/exec"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/nft/legacy"
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

// foundCode is the exit code of a command that has found something: docs/operations.md, exit codes.
const foundCode = 1

// answers runs a command on all members. Those that do not answer have a problem.
func (c *cluster) answers(ctx context.Context, members []member, args []string) []answer {
	list := make([]answer, len(members))
	for i := range members {
		list[i].Node = members[i].node.Name
		_, list[i].Problem = members[i].state()
	}
	c.ask(ctx, members, func(ctx context.Context, i int, pod *corev1.Pod) {
		stdout, err := c.run(ctx, pod, args)
		a := &list[i]
		a.Text, a.Problem = string(stdout), ""
		var ended exec.CodeExitError
		switch {
		case err == nil:
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			a.Problem = fmt.Sprintf("no answer within %s", c.timeout)
		case errors.As(err, &ended) && ended.Code == foundCode && len(stdout) > 0:
			a.Found = true
		default:
			a.Problem = err.Error()
		}
	})
	return list
}

// writeGroups prints each text once, with the nodes that have printed it, then the problems. It returns an error if a
// node has no answer.
func writeGroups(w io.Writer, answers []answer) error {
	nodes := make(map[string][]string)
	var texts []string
	var problems []answer
	for _, a := range answers {
		if a.Problem != "" {
			problems = append(problems, a)
			continue
		}
		if nodes[a.Text] == nil {
			texts = append(texts, a.Text)
		}
		nodes[a.Text] = append(nodes[a.Text], a.Node)
	}
	slices.SortStableFunc(texts, func(a, b string) int { return len(nodes[b]) - len(nodes[a]) })
	for i, text := range texts {
		if i > 0 {
			fmt.Fprintln(w)
		}
		head := nodes[text][0]
		if n := len(nodes[text]); n > 1 {
			head = fmt.Sprintf("%s (%s)", legacy.Plural(n, "node"), some(nodes[text]))
		}
		fmt.Fprintf(w, "%s:\n%s\n", head, strings.TrimRight(text, "\n"))
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
		fmt.Fprintf(w, "%s: no answer: %s\n", a.Node, a.Problem)
	}
	return inspect.TroubleError{Err: fmt.Errorf("%s did not answer", legacy.Plural(len(problems), "node"))}
}
