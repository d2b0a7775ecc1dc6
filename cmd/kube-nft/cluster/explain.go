package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
)

func newExplain(c *connection) *cobra.Command {
	var form output.Form
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "explain SRC DEST",
		Short: "Say where a connection from a pod, a node or an address goes, and why",
		Long: `explain asks kube-nft on the node where a connection begins. SRC is NAMESPACE/POD, the name of a
node, or an address. The node of a pod, of a pod's address or of a node's own address answers.
For any other address, that of a client outside the cluster, the node of DEST answers, or all nodes
if DEST is not at a node's address.

DEST is as in kube-nft explain: ADDR:PORT/PROTO, NODE:PORT/PROTO or
NAMESPACE/SERVICE[:PORT][/PROTO].

Nodes whose answers begin with the same sentence, and name the same rules of other programs, are one
group, the largest first. It exits 0 if all nodes that were asked have answered, and 2 if not.`,
		Example: `  kubectl kube-nft explain shop/web-7d4b9-x2x7p kube-system/kube-dns:dns
  kubectl kube-nft explain worker-1 shop/web:http
  kubectl kube-nft explain 203.0.113.5 192.168.0.2:30080/tcp
  kubectl kube-nft explain shop/web-7d4b9-x2x7p shop/db --all-nodes`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return config.Usagef("explain: expected SRC and DEST, got %d arguments", len(args))
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return c.nodeNames(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, members, err := c.open(cmd, nil)
			if err != nil {
				return err
			}
			from, err := cluster.origin(cmd.Context(), members, args[0], strings.HasPrefix(args[1], "["))
			if err != nil {
				return err
			}
			if from.node == "" {
				from.node = nodeOf(members, args[1])
			}
			if from.node != "" && !everywhere {
				members = slices.DeleteFunc(members, func(m member) bool { return m.node.Name != from.node })
				if len(members) == 0 {
					return fmt.Errorf("node %s of %s is not selected", from.node, args[0])
				}
			}
			command := append([]string{"explain", from.address, args[1]}, from.flags...)
			answers, err := cluster.answers(cmd.Context(), members, command)
			if err != nil {
				return err
			}
			if form.Document() {
				err = form.Write(cmd.OutOrStdout(), output.NewList("NodeAnswer", answers))
				return cmp.Or(err, writeProblems(cmd.ErrOrStderr(), withProblems(answers)))
			}
			return writeGroups(cmd.OutOrStdout(), answers)
		},
	}
	form.AddFlag(cmd, output.Text, output.JSON, output.YAML)
	cmd.Flags().BoolVar(&everywhere, "all-nodes", false, "ask all nodes, not only the one where the connection begins")
	return cmd
}

// essence is what answers of a group have in common: the first paragraph, and the facts about rules of other programs.
// The rest names endpoints on the node, and its pod CIDR.
func essence(text string) string {
	first, rest, _ := strings.Cut(text, "\n\n")
	for line := range strings.Lines(rest) {
		for _, topic := range []string{"Ahead of us ", "Firewall ", "Forwarding "} {
			if strings.HasPrefix(line, topic) {
				first += "\n" + line
			}
		}
	}
	return first
}

// nodeOf returns the node whose address or name a destination has; empty if none.
func nodeOf(members []member, destination string) string {
	at := destination[:max(0, strings.LastIndex(destination, ":"))]
	at = strings.Trim(at, "[]")
	for _, m := range members {
		same := func(a corev1.NodeAddress) bool { return a.Address == at }
		if m.node.Name == at || slices.ContainsFunc(m.node.Status.Addresses, same) {
			return m.node.Name
		}
	}
	return ""
}

// withProblems returns the answers that are none.
func withProblems(answers []answer) []answer {
	return slices.DeleteFunc(slices.Clone(answers), func(a answer) bool { return a.Problem == "" })
}

// An origin is where a connection begins.
type origin struct {
	address string
	node    string   // empty: outside the cluster
	flags   []string // of explain
}

// origin finds a source: NAMESPACE/POD, the name of a node, or an address. ip6 says of a pod or node with addresses of
// both families which one is meant.
func (c *cluster) origin(ctx context.Context, members []member, source string, ip6 bool) (origin, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if namespace, name, ok := strings.Cut(source, "/"); ok {
		pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return origin{}, fmt.Errorf("there is no pod %s; SRC is NAMESPACE/POD, the name of a node, or an address", source)
		}
		if err != nil {
			return origin{}, fmt.Errorf("pod %s: %w", source, err)
		}
		return ofPod(pod, ip6)
	}
	addr, err := netip.ParseAddr(source)
	for _, m := range members {
		for _, a := range m.node.Status.Addresses {
			own, addrErr := netip.ParseAddr(a.Address)
			if addrErr != nil || a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
				continue
			}
			if err == nil && own == addr || m.node.Name == source && own.Is6() == ip6 {
				return origin{own.String(), m.node.Name, []string{"--from", "node"}}, nil
			}
		}
	}
	if err != nil {
		return origin{}, fmt.Errorf("no Linux node with an address of the family of DEST is called %s; SRC is "+
			"NAMESPACE/POD, the name of a node, or an address", source)
	}
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("status.podIP", addr.String()).String(), Limit: 100,
	})
	if apierrors.IsForbidden(err) { // then the address counts as one outside the cluster
		return origin{address: source}, nil
	}
	if err != nil {
		return origin{}, fmt.Errorf("list pods with address %s: %w", addr, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; hasAddress(pod, addr) && !pod.Spec.HostNetwork {
			return origin{source, pod.Spec.NodeName, nil}, nil
		}
	}
	return origin{address: source}, nil
}

// ofPod returns where connections of a pod begin.
func ofPod(pod *corev1.Pod, ip6 bool) (origin, error) {
	o := origin{node: pod.Spec.NodeName}
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && addr.Is6() == ip6 {
			o.address = ip.IP
		}
	}
	if pod.Spec.HostNetwork {
		o.flags = []string{"--from", "node"}
	}
	if o.node == "" || o.address == "" {
		return o, errors.New("pod " + pod.Namespace + "/" + pod.Name + " has no address of the family of DEST on a node")
	}
	return o, nil
}

func hasAddress(pod *corev1.Pod, addr netip.Addr) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		own, err := netip.ParseAddr(ip.IP)
		return err == nil && own == addr
	})
}
