package cluster

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/nft/legacy"
)

func newBugReport(c *connection) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "bugreport [NODE]...",
		Short: "Write an archive for a bug report: state, logs and events of all nodes",
		Long: `bugreport collects what a bug report needs of the given nodes, or of all Linux nodes, and writes it
to one archive of at most 10 MiB: what status, migrate plan, diff, get services and get endpoints
print, the logs of kube-nft's containers and of those that ended before them, kube-nft's pods and
DaemonSets, the nodes, and the events about them. CONTENTS.txt lists the files, and what was left out
or cut.

The archive has names and addresses of Services, pods and nodes. It has no Secret, no ConfigMap, no
values of environment variables, and no addresses of clients: session affinity and conntrack entries
are left out. Look at it before you publish it.

It exits 0, and 2 if a node did not answer. Then the archive has the rest.`,
		Example: "  kubectl kube-nft bugreport\n  kubectl kube-nft bugreport worker-1 --file report.tar.gz",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			cluster, err := c.connect(cmd.Flags())
			if err != nil {
				return inspect.TroubleError{Err: err}
			}
			members, err := cluster.members(cmd.Context(), names, c.selector)
			if err != nil {
				return inspect.TroubleError{Err: err}
			}
			now := time.Now()
			name := cmp.Or(file, "kube-nft-bugreport-"+now.UTC().Format("20060102-150405")+".tar.gz")
			out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return inspect.TroubleError{Err: err}
			}
			files, problems := cluster.collectReport(cmd.Context(), members)
			err = writeArchive(out, files, now)
			if err = errors.Join(err, out.Close()); err != nil {
				return inspect.TroubleError{Err: err}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s has %s of %s; look at it before you publish it\n", name,
				legacy.Plural(len(files), "file"), legacy.Plural(len(members), "node"))
			return writeProblems(cmd.ErrOrStderr(), problems)
		},
	}
	cmd.Flags().StringVar(&file, "file", "",
		"file to write, which must not exist (default kube-nft-bugreport-TIME.tar.gz)")
	return cmd
}

// A reportFile is a file of a report. The first ones matter most.
type reportFile struct {
	name string
	text []byte
	note string // for the list of contents
}

// reportCommands are what a report has of each node, the most important first.
var reportCommands = []struct {
	file string
	args []string
}{
	{"status.json", []string{"status", "-o", "json"}},
	{"version.json", []string{"version", "-o", "json"}},
	{"diff.txt", []string{"diff"}},
	{"plan.json", []string{"migrate", "plan", "-o", "json"}}, // sysctls, modules and other programs
	{"services.json", []string{"get", "services", "-o", "json"}},
	{"endpoints.json", []string{"get", "endpoints", "-o", "json"}},
}

// logBytes is how much of a log is kept, its end.
const logBytes = 1 << 20

// collectReport collects the files. problems are the nodes that did not answer.
func (c *cluster) collectReport(ctx context.Context, members []member) (files []reportFile, problems []answer) {
	files = c.objectFiles(ctx, members)
	for _, command := range reportCommands {
		for _, a := range c.answers(ctx, members, command.args) {
			f := reportFile{name: "nodes/" + a.Node + "/" + command.file, text: []byte(a.Text)}
			if a.Problem != "" {
				f.note = "no answer: " + a.Problem
				if !slices.ContainsFunc(problems, func(p answer) bool { return p.Node == a.Node }) {
					problems = append(problems, a)
				}
			}
			files = append(files, f)
		}
	}
	return append(files, c.logFiles(ctx, members)...), problems
}

// objectFiles are kube-nft's pods and DaemonSets, the nodes, and the events about them.
func (c *cluster) objectFiles(ctx context.Context, members []member) (files []reportFile) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	add := func(name string, objects any, err error) {
		f := reportFile{name: name}
		if err == nil {
			f.text, err = yaml.Marshal(objects)
		}
		if err != nil {
			f.note = "not read: " + err.Error()
		}
		files = append(files, f)
	}
	var nodes []corev1.Node
	var pods []corev1.Pod
	about := make(map[string]bool)
	for _, m := range members {
		n := *m.node
		n.ManagedFields, n.Status.Images = nil, nil
		nodes, about[n.Name] = append(nodes, n), true
		for _, pod := range m.pods {
			p := pod.DeepCopy()
			tidy(&p.ObjectMeta, &p.Spec)
			pods, about[p.Name] = append(pods, *p), true
		}
	}
	add("nodes.yaml", nodes, nil)
	add("pods.yaml", pods, nil)
	sets, err := c.client.AppsV1().DaemonSets(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: podLabel})
	if err == nil {
		for i := range sets.Items {
			tidy(&sets.Items[i].ObjectMeta, &sets.Items[i].Spec.Template.Spec)
			about[sets.Items[i].Name] = true
		}
		add("daemonsets.yaml", sets.Items, nil)
	} else {
		add("daemonsets.yaml", nil, err)
	}
	var events []corev1.Event
	for _, namespace := range []string{c.namespace, metav1.NamespaceDefault} { // those of nodes are in the latter
		list, listErr := c.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if listErr != nil {
			err = errors.Join(err, listErr)
			continue
		}
		for _, event := range list.Items {
			if about[event.InvolvedObject.Name] {
				event.ManagedFields = nil
				events = append(events, event)
			}
		}
	}
	add("events.yaml", events, err)
	return files
}

// tidy takes away what a report must not have: a value of the environment may be a password.
func tidy(meta *metav1.ObjectMeta, spec *corev1.PodSpec) {
	meta.ManagedFields = nil
	delete(meta.Annotations, corev1.LastAppliedConfigAnnotation)
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			for j := range list[i].Env {
				if e := &list[i].Env[j]; e.Value != "" && !strings.HasPrefix(e.Name, "KUBERNETES_SERVICE_") {
					e.Value = "(left out)"
				}
			}
		}
	}
}

// logFiles are the logs of the containers that run, and of those before them.
func (c *cluster) logFiles(ctx context.Context, members []member) (files []reportFile) {
	var mu sync.Mutex
	c.ask(ctx, members, func(ctx context.Context, i int, pod *corev1.Pod) {
		for _, previous := range []bool{false, true} {
			f := reportFile{name: "nodes/" + members[i].node.Name + "/log.txt"}
			if previous {
				f.name = "nodes/" + members[i].node.Name + "/log-before.txt"
				if !restarted(pod) {
					continue
				}
			}
			var err error
			f.text, err = c.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
				Container: container, Previous: previous, TailLines: new(int64(20_000)),
			}).Do(ctx).Raw()
			if err != nil {
				f.note = "not read: " + err.Error()
			}
			if more := len(f.text) - logBytes; more > 0 {
				f.text, f.note = f.text[more:], "the last MiB"
			}
			mu.Lock()
			files = append(files, f)
			mu.Unlock()
		}
	})
	slices.SortFunc(files, func(a, b reportFile) int { return cmp.Compare(a.name, b.name) })
	return files
}

// restarted reports whether a container of kube-nft has ended in the pod.
func restarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == container && s.RestartCount > 0
	})
}

// Bounds of an archive, and of a file before it is compressed. The list of contents, which is last, has what is left
// out.
const (
	maxArchive    = 10 << 20
	maxReportFile = 8 << 20
	contentsRoom  = 1 << 20 // for files in the compressor, and for the list
)

// writeArchive writes files as tar.gz, within the bounds.
func writeArchive(w io.Writer, files []reportFile, now time.Time) error {
	counted := &counter{w: w}
	compressor := gzip.NewWriter(counted)
	archive := tar.NewWriter(compressor)
	var contents bytes.Buffer
	fmt.Fprintf(&contents, "kubectl kube-nft %s, %s\n\n", config.Build().GitVersion, now.UTC().Format(time.RFC3339))
	add := func(name string, text []byte) error {
		header := &tar.Header{Name: "kube-nft-bugreport/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(text); err != nil {
			return err
		}
		return compressor.Flush()
	}
	for _, f := range files {
		if cut := len(f.text) - maxReportFile; cut > 0 {
			f.text, f.note = f.text[:maxReportFile], fmt.Sprintf("cut: %d bytes more", cut)
		}
		// A compressor may make a file a little larger, but not by more than a thousandth.
		room := maxArchive - contentsRoom - counted.n
		if len(f.text)+len(f.text)/1000 > room && !fits(f.text, room) {
			f.text, f.note = nil, "left out: the archive would be larger than 10 MiB"
		}
		fmt.Fprintf(&contents, "%9d  %s  %s\n", len(f.text), f.name, f.note)
		if len(f.text) > 0 {
			if err := add(f.name, f.text); err != nil {
				return err
			}
		}
	}
	return errors.Join(add("CONTENTS.txt", contents.Bytes()), archive.Close(), compressor.Close())
}

// fits reports whether a compressed text has room.
func fits(text []byte, room int) bool {
	counted := &counter{w: io.Discard}
	compressor := gzip.NewWriter(counted)
	_, err := compressor.Write(text)
	return errors.Join(err, compressor.Close()) == nil && counted.n < room
}

// A counter counts what is written.
type counter struct {
	w io.Writer
	n int
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += n
	return n, err
}
