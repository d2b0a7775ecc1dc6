package cluster

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/words"
)

func newBugReport(c *connection) *cobra.Command {
	var file string
	var clients bool
	cmd := &cobra.Command{
		Use:   "bugreport [NODE]...",
		Short: "Write an archive for a bug report: state, logs and events of all nodes",
		Long: `bugreport collects what a bug report needs of the given nodes, or of all Linux nodes, and writes it
to one archive of at most 10 MiB. Of each node: the kernel, modules, sysctls and counters of
connection tracking; the metrics and the tables of kube-nft; what status (with the settings), migrate
plan, diff, get services and get endpoints print; the logs of kube-nft's container and of the one that
ended before it. Of the cluster: kube-nft's pods and DaemonSets, the nodes, the events about them, and
the events that kube-nft sent. CONTENTS.txt lists the files, and what was left out or cut.

The archive has names and addresses of Services, pods and nodes. It has no Secret, no ConfigMap, and
no values of environment variables and annotations. Addresses of clients are left out: session
affinity and source ranges, which --clients adds, and conntrack entries. But log lines and events quote
fields of objects that kube-nft could not use. Look at the archive before you publish it.

It exits 0 if the archive is complete. It exits 2 if a node did not answer or you lack a permission;
the archive then has the rest.`,
		Example:           "  kubectl kube-nft bugreport\n  kubectl kube-nft bugreport worker-1 --file report.tar.gz",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: c.nodeNames,
		RunE: func(cmd *cobra.Command, names []string) error {
			cluster, members, err := c.open(cmd, names)
			if err != nil {
				return err
			}
			cluster.parallel = min(cluster.parallel, maxReported)
			r := &report{cluster: cluster, members: members, clients: clients, at: time.Now()}
			name := cmp.Or(file, "kube-nft-bugreport-"+r.at.UTC().Format("20060102-150405")+".tar.gz")
			out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			refused := r.collect(cmd.Context())
			err = r.write(out)
			if err = errors.Join(err, out.Close()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s has %s of %s; look at it before you publish it\n", name,
				words.Plural(len(r.files), "file"), words.Plural(len(members), "node"))
			if refused != nil {
				return refused
			}
			return writeProblems(cmd.ErrOrStderr(), r.problems)
		},
	}
	cmd.Flags().StringVar(&file, "file", "",
		"file to write, which must not exist (default kube-nft-bugreport-TIME.tar.gz)")
	cmd.Flags().BoolVar(&clients, "clients", false, "with session affinity and source ranges, which name clients")
	return cmd
}

// Bounds of a report.
const (
	maxReported   = 8 // nodes at a time: each answer may have maxAnswer
	maxArchive    = 10 << 20
	maxReportFile = 8 << 20 // before it is compressed
	logLines      = 5000
	logBytes      = 1 << 20 // of a log, its end
)

// A report is what bugreport writes. Files are compressed as they come, so that it does not hold the text of all nodes.
type report struct {
	cluster *cluster
	members []member
	clients bool // with what names clients
	at      time.Time
	silent  []bool // by member: it did not answer in time, and is not asked again

	mu       sync.Mutex
	files    []reportFile
	problems []answer // of nodes that did not answer, one for each
}

// A reportFile is a file of a report.
type reportFile struct {
	rank   int    // the lowest matter most
	name   string // in the archive
	size   int    // of the text
	packed []byte // a whole gzip stream with its part of a tar archive
	note   string // for the list of contents
}

// reportCommands are what a report has of each node, and the rank of the file.
var reportCommands = []struct {
	rank int
	file string
	args []string
}{
	{1, "status.json", []string{"status", "-o", "json"}},
	{1, "version.json", []string{"version", "-o", "json"}},
	{2, factsFile, []string{"facts", "-o", "json"}},
	{4, "diff.txt", []string{"diff"}},
	{4, "plan.json", []string{"migrate", "plan", "-o", "json"}},
	{6, "services.json", []string{"get", "services", "-o", "json"}},
	{8, "endpoints.json", []string{"get", "endpoints", "-o", "json"}},
	{rankClient, "affinity.json", []string{"get", "affinity", "-o", "json"}},
}

// Files that are made of facts, or ranked elsewhere than in reportCommands.
const (
	factsFile                                                  = "facts.json"
	rankObjects, rankLog, rankMetrics, rankRuleset, rankClient = 0, 3, 5, 7, 9
)

// collect collects the files. It returns what the user may not do.
func (r *report) collect(ctx context.Context) (refused error) {
	r.objects(ctx)
	for i := range r.members {
		if m := &r.members[i]; !m.answers() {
			_, problem := m.state()
			r.fail(m.node.Name, problem)
		}
	}
	r.silent = make([]bool, len(r.members))
	for _, command := range reportCommands {
		switch {
		case command.rank == rankClient && !r.clients:
			continue
		case command.file == factsFile && r.clients:
			command.args = append(slices.Clip(command.args), "--clients")
		}
		err := r.cluster.ask(ctx, r.members, func(ctx context.Context, i int, pod *corev1.Pod) error {
			node := r.members[i].node.Name
			if r.silent[i] {
				r.add(command.rank, "nodes/"+node+"/"+command.file, nil, "not asked: the node did not answer before")
				return nil
			}
			err := r.ofNode(ctx, node, pod, command.rank, command.file, command.args)
			r.silent[i] = errors.Is(ctx.Err(), context.DeadlineExceeded)
			return err
		})
		refused = cmp.Or(refused, err)
	}
	return cmp.Or(refused, r.logs(ctx))
}

// fail notes why a node did not answer; one problem of a node is enough.
func (r *report) fail(node, problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(r.problems, func(a answer) bool { return a.Node == node }) {
		r.problems = append(r.problems, answer{Node: node, Problem: problem})
	}
}

// add packs a file.
func (r *report) add(rank int, name string, text []byte, note string) {
	if len(text) > maxReportFile {
		text, note = text[:maxReportFile], "the first 8 MiB"
	}
	f := reportFile{rank: rank, name: name, size: len(text), note: note}
	if len(text) > 0 {
		f.packed = packFile(name, text, r.at, false)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = append(r.files, f)
}

// ofNode adds what a command prints on a node.
func (r *report) ofNode(ctx context.Context, node string, pod *corev1.Pod, rank int, file string, args []string) error {
	directory := "nodes/" + node + "/"
	text, found, err := r.cluster.read(ctx, pod, args)
	if err != nil && !found {
		r.fail(node, strings.Join(args, " ")+": "+err.Error())
		r.add(rank, directory+file, nil, "no answer: "+err.Error())
		return err
	}
	switch file {
	case "diff.txt":
		if !r.clients {
			text = withoutClients(text)
		}
	case factsFile: // the two long texts have files of their own
		var facts inspect.Facts
		if json.Unmarshal(text, &facts) != nil {
			break
		}
		r.add(rankMetrics, directory+"metrics.txt", []byte(facts.Metrics), "")
		r.add(rankRuleset, directory+"ruleset.nft", []byte(facts.Ruleset), "")
		facts.Metrics, facts.Ruleset = "", ""
		var short bytes.Buffer
		if form := (output.Form{Value: output.JSON}); form.Write(&short, &facts) == nil {
			text = short.Bytes()
		}
	}
	r.add(rank, directory+file, text, "")
	return nil
}

// clientSets match lines of nft text about sets whose elements name clients.
var clientSets = regexp.MustCompile(
	`(?m)^.*\bkube-nft (?:` + layout.RangesPrefix + `|` + layout.AffinityPrefix + `).*$`)

// withoutClients replaces such lines of nft text.
func withoutClients(text []byte) []byte {
	return clientSets.ReplaceAll(text, []byte("# left out: a line about a set that names clients"))
}

// objects adds kube-nft's pods and DaemonSets, the nodes, the events about them, and those that kube-nft sent.
func (r *report) objects(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	add := func(name string, objects any, err error) {
		note := ""
		if err != nil {
			note = "not read: " + err.Error()
		}
		text, err := yaml.Marshal(objects)
		if err != nil {
			note = "not printed: " + err.Error()
		}
		r.add(rankObjects, name, text, note)
	}
	var nodes []corev1.Node
	var pods []corev1.Pod
	about := make(map[string]bool)
	for _, m := range r.members {
		n := m.node.DeepCopy()
		tidy(&n.ObjectMeta)
		n.Status.Images = nil
		nodes, about[n.Name] = append(nodes, *n), true
		for _, pod := range m.pods {
			p := pod.DeepCopy()
			tidy(&p.ObjectMeta)
			tidyPod(&p.Spec)
			pods, about[p.Name] = append(pods, *p), true
		}
	}
	add("nodes.yaml", nodes, nil)
	add("pods.yaml", pods, nil)
	client := r.cluster.client
	sets, err := client.AppsV1().DaemonSets(r.cluster.namespace).List(ctx, metav1.ListOptions{LabelSelector: podLabel})
	if err == nil {
		for i := range sets.Items {
			about[sets.Items[i].Name] = true
			tidy(&sets.Items[i].ObjectMeta)
			tidy(&sets.Items[i].Spec.Template.ObjectMeta)
			tidyPod(&sets.Items[i].Spec.Template.Spec)
		}
		add("daemonsets.yaml", sets.Items, nil)
	} else {
		add("daemonsets.yaml", nil, err)
	}
	const maxEvents = 2000
	var events []corev1.Event
	err = nil
	seen := make(map[types.UID]bool)
	for _, list := range []struct{ namespace, source string }{
		{r.cluster.namespace, ""}, {metav1.NamespaceDefault, ""}, // those of nodes are in the latter
		{metav1.NamespaceAll, eventSource},
	} {
		options := metav1.ListOptions{Limit: maxEvents}
		if list.source != "" {
			options.FieldSelector = fields.OneTermEqualSelector("source", list.source).String()
		}
		found, listErr := client.CoreV1().Events(list.namespace).List(ctx, options)
		if listErr != nil {
			err = errors.Join(err, listErr)
			continue
		}
		if found.Continue != "" {
			err = errors.Join(err, fmt.Errorf("events beyond the first %d of namespace %s", maxEvents,
				cmp.Or(list.namespace, "any")))
		}
		for _, event := range found.Items {
			ours := event.ReportingController == eventSource || event.Source.Component == eventSource
			if (ours || about[event.InvolvedObject.Name]) && !seen[event.UID] {
				seen[event.UID] = event.UID != ""
				tidy(&event.ObjectMeta)
				events = append(events, event)
			}
		}
	}
	add("events.yaml", events, err)
}

// eventSource is what kube-nft's events have as their source.
const eventSource = "kube-nft"

// tidy takes away what a report must not have: annotations may repeat what the rest leaves out, and some distributions
// keep a node's token in one.
func tidy(meta *metav1.ObjectMeta) {
	meta.ManagedFields = nil
	for name := range meta.Annotations {
		meta.Annotations[name] = leftOut
	}
}

// leftOut stands in the place of a value.
const leftOut = "(left out)"

// tidyPod takes away the values of the environment: one may be a password.
func tidyPod(spec *corev1.PodSpec) {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			for j := range list[i].Env {
				if e := &list[i].Env[j]; e.Value != "" && !strings.HasPrefix(e.Name, "KUBERNETES_SERVICE_") {
					e.Value = leftOut
				}
			}
		}
	}
}

// logs adds the logs of the containers that run, and of those before them.
func (r *report) logs(ctx context.Context) error {
	return r.cluster.ask(ctx, r.members, func(ctx context.Context, i int, pod *corev1.Pod) error {
		var failed error
		for name, previous := range map[string]bool{"log.txt": false, "log-before.txt": true} {
			if previous && !restarted(pod) {
				continue
			}
			var end tail
			log, err := r.cluster.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
				Container: container, Previous: previous, TailLines: new(int64(logLines)),
			}).Stream(ctx)
			if err == nil {
				_, err = io.Copy(&end, log)
				err = errors.Join(err, log.Close())
			}
			end.cut()
			text, note := end.text, ""
			if end.long {
				note = "the last MiB"
			}
			if err != nil {
				text, note, failed = nil, "not read: "+err.Error(), err
			}
			r.add(rankLog, "nodes/"+r.members[i].node.Name+"/"+name, text, note)
		}
		return failed
	})
}

// A tail keeps the end of what is written: a node may send a log without an end.
type tail struct {
	text []byte
	long bool // there was more than logBytes
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	if t.text = append(t.text, p...); len(t.text) > 4*logBytes {
		t.cut()
	}
	return len(p), nil
}

// cut leaves logBytes at most.
func (t *tail) cut() {
	if more := len(t.text) - logBytes; more > 0 {
		t.text, t.long = append(t.text[:0], t.text[more:]...), true
	}
}

// restarted reports whether a container of kube-nft has ended in the pod.
func restarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == container && s.RestartCount > 0
	})
}

// packFile returns a gzip stream with a file of a tar archive. Such streams one after the other are an archive if the
// last one, and no other, ends it.
func packFile(name string, text []byte, at time.Time, last bool) []byte {
	var packed bytes.Buffer
	compressor := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressor)
	header := &tar.Header{Name: "kube-nft-bugreport/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: at}
	_ = archive.WriteHeader(header) // into memory, as all that follows
	_, _ = archive.Write(text)
	if _ = archive.Flush(); last {
		_ = archive.Close()
	}
	_ = compressor.Close()
	return packed.Bytes()
}

// write writes the files as tar.gz, the most important ones first, and the list of contents, within maxArchive.
func (r *report) write(w io.Writer) error {
	slices.SortStableFunc(r.files, func(a, b reportFile) int {
		return cmp.Or(a.rank-b.rank, strings.Compare(a.name, b.name))
	})
	var contents bytes.Buffer
	fmt.Fprintf(&contents, "kubectl kube-nft %s, %s\n\n", config.Build().GitVersion, r.at.UTC().Format(time.RFC3339))
	for _, a := range r.problems {
		fmt.Fprintf(&contents, "no answer from %s: %s\n", a.Node, a.Problem)
	}
	room := maxArchive - maxArchive/16 // the rest is for the list
	for _, f := range r.files {
		if len(f.packed) > room {
			f.size, f.packed, f.note = 0, nil, "left out: the archive would be larger than 10 MiB"
		}
		room -= len(f.packed)
		fmt.Fprintf(&contents, "%9d  %s  %s\n", f.size, f.name, f.note)
		if _, err := w.Write(f.packed); err != nil {
			return err
		}
	}
	_, err := w.Write(packFile("CONTENTS.txt", contents.Bytes(), r.at, true))
	return err
}
