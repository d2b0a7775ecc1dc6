// Package cluster holds the commands for all nodes, kubectl kube-nft. Add Commands to the root command. A command that
// could not look returns an error other than ErrNoGo, inspect.ErrDiffers and inspect.ErrUnhealthy.
//
// A command reads the nodes and the pods of kube-nft with the user's kubeconfig (members), runs a command of the
// program in each pod (ask), side by side, and prints a row for each node. A node that does not answer is a row as
// well.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
)

// Name is the file name of the program under which it is the kubectl plug-in. kubectl runs CompletionName with the
// words of a command line, for the shell.
const (
	Name           = "kubectl-kube_nft"
	CompletionName = "kubectl_complete-kube_nft"
)

// Where kube-nft runs in a cluster, as in deploy/.
const (
	defaultNamespace = "kube-system"
	podLabel         = "app.kubernetes.io/name=kube-nft"
	container        = "kube-nft"
	program          = "/kube-nft"
)

// Commands returns the commands, whose common flags it declares in flags.
func Commands(flags *pflag.FlagSet) []*cobra.Command {
	c := newConnection(flags)
	return []*cobra.Command{newCheck(c), newStatus(c), newDiff(c), newExplain(c), newGet(c), newTrace(c), newTop(c),
		newFlows(c), newBugReport(c)}
}

// A connection has the user's flags and connects with the cluster that they choose.
type connection struct {
	loader   clientcmd.ClientConfig
	selector string
	timeout  time.Duration
	parallel int
}

func newConnection(flags *pflag.FlagSet) *connection {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	overrides := &clientcmd.ConfigOverrides{}
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.Timeout.LongName = "request-timeout" // as kubectl calls it
	clientcmd.BindOverrideFlags(overrides, flags, names)
	flags.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path to the kubeconfig file to use")
	flags.Lookup("namespace").Usage = "the namespace of kube-nft's pods (default \"" + defaultNamespace + "\")"
	c := &connection{loader: clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)}
	flags.StringVarP(&c.selector, "selector", "l", "", "only nodes with these labels, as with kubectl get nodes -l")
	flags.DurationVar(&c.timeout, "timeout", 30*time.Second, "how long one node may take to answer")
	flags.IntVar(&c.parallel, "parallel", 32, "how many nodes to ask at the same time")
	return c
}

// A cluster is what the commands work with.
type cluster struct {
	client    kubernetes.Interface
	run       runner
	stream    streamer
	namespace string
	timeout   time.Duration
	parallel  int
}

// connect reads the kubeconfig. Kubectl's default namespace is not that of a node's components, so only a flag chooses
// another one than theirs.
func (c *connection) connect(flags *pflag.FlagSet) (*cluster, error) {
	if c.parallel < 1 || c.timeout <= 0 {
		return nil, config.Usagef("--parallel and --timeout: expected more than 0")
	}
	klog.SetLogger(logr.Discard()) // client-go logs each stream that ends with a timeout; the row of the node says so
	settings, err := c.loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	settings.QPS, settings.Burst = -1, 0 // the number of nodes that are asked at the same time is the limit
	settings.UserAgent = Name + "/" + config.Build().GitVersion
	settings.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	namespace := defaultNamespace
	if flags.Changed("namespace") {
		namespace = flags.Lookup("namespace").Value.String()
	}
	stream := execIn(client, settings)
	return &cluster{
		client: client, run: stream.collect, stream: stream, namespace: namespace, timeout: c.timeout, parallel: c.parallel,
	}, nil
}

// open connects, and returns the chosen nodes.
func (c *connection) open(cmd *cobra.Command, names []string) (*cluster, []member, error) {
	cluster, err := c.connect(cmd.Flags())
	if err != nil {
		return nil, nil, err
	}
	members, err := cluster.members(cmd.Context(), names, c.selector)
	return cluster, members, err
}

// completionTimeout bounds how long the shell waits for names.
const completionTimeout = 3 * time.Second

// nodeNames offers the names of nodes to the shell.
func (c *connection) nodeNames(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	cluster, err := c.connect(cmd.Flags())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	nodes, err := cluster.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: c.selector})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// addNodes declares --node.
func (c *connection) addNodes(cmd *cobra.Command, nodes *[]string) {
	cmd.Flags().StringSliceVar(nodes, "node", nil, "only these nodes")
	output.OfferFrom(cmd, "node", c.nodeNames)
}

// A member is a node, and kube-nft's pods on it, the one that serves or is to serve first.
type member struct {
	node *corev1.Node
	pods []*corev1.Pod
}

// listTimeout bounds how long the API server may take to list nodes and pods.
const listTimeout = 30 * time.Second

// members returns the Linux nodes with these names, or all that the selector selects, by name.
func (c *cluster) members(ctx context.Context, names []string, selector string) ([]member, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, permitted(fmt.Errorf("list nodes: %w", err))
	}
	pods, err := c.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: podLabel})
	if err != nil {
		return nil, permitted(fmt.Errorf("list pods: %w", err))
	}
	byNode := make(map[string][]*corev1.Pod)
	for i := range pods.Items {
		pod := &pods.Items[i]
		byNode[pod.Spec.NodeName] = append(byNode[pod.Spec.NodeName], pod)
	}
	var list []member
	missing := slices.Clone(names)
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if len(names) > 0 && !slices.Contains(names, node.Name) ||
			cmp.Or(node.Labels[corev1.LabelOSStable], "linux") != "linux" {
			continue
		}
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == node.Name })
		m := member{node: node, pods: byNode[node.Name]}
		slices.SortFunc(m.pods, func(a, b *corev1.Pod) int {
			return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
		})
		list = append(list, m)
	}
	switch {
	case len(missing) > 0:
		text := "no Linux node is called " + strings.Join(missing, ", ")
		if selector != "" {
			text = "no Linux node with the labels " + selector + " is called " + strings.Join(missing, ", ")
		}
		return nil, errors.New(text)
	case len(list) == 0:
		return nil, errors.New("no Linux node is selected")
	}
	slices.SortFunc(list, func(a, b member) int { return cmp.Compare(a.node.Name, b.node.Name) })
	return list, nil
}

// rank orders the pods of a node: those that run come first, those that end last.
func rank(pod *corev1.Pod) int {
	switch {
	case pod.DeletionTimestamp != nil:
		return 2
	case whyNotRunning(pod) != "":
		return 1
	}
	return 0
}

// whyNotRunning says in a few words why the container of a pod does not run; empty if it does.
func whyNotRunning(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case s.Name == container && s.State.Running != nil:
			return ""
		case s.State.Waiting != nil && s.State.Waiting.Reason != "PodInitializing":
			return strings.TrimSuffix(s.State.Waiting.Reason+": "+s.State.Waiting.Message, ": ")
		case s.Name == container && s.State.Terminated != nil:
			return fmt.Sprintf("ended with exit code %d", s.State.Terminated.ExitCode)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return "not scheduled: " + condition.Message
		}
	}
	return "the kubelet has not started it yet"
}

// whyNotReady says why a node may not run a pod; empty if it is ready.
func whyNotReady(node *corev1.Node) string {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return "the node is not ready: " + condition.Message
		}
	}
	return ""
}
