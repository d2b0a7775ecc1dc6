// Command kube-nft is a Kubernetes Service proxy on nftables: it watches Services,
// EndpointSlices, ServiceCIDRs and its Node, and keeps the kernel's ruleset equal to them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/cluster"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/inspect"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/move"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/tracker/informer"
)

// Exit codes; docs/operations.md has the table. A command that only reads ends with exitFound if it found a difference
// or a fault, and with exitTrouble if it could not read. exitConfig means that the configuration file changed; it is
// not 0 because many service managers restart a program only after a failure.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitFound   = 1
	exitTrouble = 2
	exitConfig  = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	root, args := newRoot, os.Args[1:]
	switch filepath.Base(os.Args[0]) {
	case cluster.Name:
		root = newPlugin
	case cluster.CompletionName:
		root, args = newPlugin, append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	code := execute(ctx, root(), args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs one command line and returns the exit code. Errors are one line on stderr.
func execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	args = slices.Clone(args)
	for i := range args {
		if args[i] == "->" { // as in SRC -> ADDR: not a flag
			args[i] = "→"
		}
	}
	visibleOut, visibleErr := newVisibleWriter(stdout), newVisibleWriter(stderr)
	defer visibleOut.flush()
	defer visibleErr.flush()
	stdout, stderr = visibleOut, visibleErr
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, inspect.ErrDiffers), errors.Is(err, inspect.ErrUnhealthy),
		errors.Is(err, cluster.ErrNoGo): // the output says so
		return exitFound
	case errors.Is(err, daemon.ErrConfigChanged): // the log has said so
		return exitConfig
	}
	hint := ""
	_, usage := errors.AsType[config.UsageError](err)
	if usage {
		if command.Name() == "help" {
			command = command.Root()
		}
		hint = "; see " + command.CommandPath() + " --help"
	}
	fmt.Fprintln(stderr, root.DisplayName()+": "+strings.ReplaceAll(err.Error(), "\n", "; ")+hint)
	switch {
	case usage, errors.As(err, new(*config.Error)), errors.Is(err, informer.ErrNoServer):
		return exitUsage
	case errors.As(err, new(inspect.TroubleError)), errors.Is(err, move.ErrIncomplete),
		root.Name() == cluster.Name: // all its commands only read
		return exitTrouble
	}
	return exitFailed
}

// extraCommands are commands that only some builds have.
var extraCommands []func() *cobra.Command

// newRoot declares the commands. The root command itself is the daemon.
func newRoot() *cobra.Command {
	var reader *config.Reader
	var dryRun, showConfig, initOnly, cleanUp bool
	var asked versionFlag
	var writeConfig string
	root := &cobra.Command{
		Use:   "kube-nft",
		Short: "A Kubernetes Service proxy on nftables",
		Long: `kube-nft is a Kubernetes Service proxy: it replaces kube-proxy on a node. It watches Services,
EndpointSlices, ServiceCIDRs and its Node, from the API server or from files. It programs
nftables over netlink, so that traffic to cluster IPs, node ports, load-balancer IPs and
external IPs reaches ready endpoints.`,
		Example: `  kube-nft --config /var/lib/kube-proxy/config.conf --hostname-override worker-1
  kube-nft --manifests deploy/examples --hostname-override node-a --dry-run
  kube-nft --config /var/lib/kube-proxy/config.conf --show-config`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stdout, stderr := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			switch asked {
			case versionPlain:
				return printVersion(stdout)
			case versionRaw:
				_, err := fmt.Fprintf(stdout, "%#v\n", config.Build())
				return err
			}
			c, err := reader.Read()
			if err != nil {
				return err
			}
			switch {
			case showConfig, writeConfig != "":
				c.LogNotices(c.Log(stderr))
				return printConfig(c, showConfig, writeConfig, stdout)
			case dryRun:
				c.LogNotices(c.Log(stderr))
				return inspect.DryRun(ctx, c, stdout, stderr)
			case initOnly:
				return daemon.Prepare(ctx, c, stderr)
			case cleanUp:
				c.LogNotices(c.Log(stderr))
				return move.Cleanup(ctx, stderr)
			}
			return daemon.Run(ctx, reader, c, stderr)
		},
	}
	reader = config.NewReader(root.PersistentFlags())
	for flag, values := range config.Choices() {
		output.Offer(root, flag, values...)
	}
	root.Flags().BoolVar(&dryRun, "dry-run", false,
		"print the ruleset as nft text and exit; needs no privileges and does not change the kernel")
	root.Flags().BoolVar(&cleanUp, "cleanup", false, "run the command cleanup, and exit")
	root.Flags().Var(&asked, "version",
		"run the command version, and exit; raw prints it as components of Kubernetes do")
	root.Flags().Lookup("version").NoOptDefVal = "true"
	root.Flags().BoolVar(&initOnly, "init-only", false,
		"set the conntrack sysctls and exit, for a privileged init container")
	root.Flags().BoolVar(&showConfig, "show-config", false,
		"print the settings from defaults, --config and flags, as a file for --config, and exit")
	root.Flags().StringVar(&writeConfig, "write-config-to", "", "write the output of --show-config to this file and exit")
	reader.Show(root.Flags())
	root.SetGlobalNormalizationFunc(config.NormalizeName)
	root.AddCommand(newVersion("kube-nft"))
	root.AddCommand(inspect.Commands(reader)...)
	root.AddCommand(move.Commands(reader)...)
	for _, extra := range extraCommands {
		root.AddCommand(extra())
	}
	finish(root)
	arrange(root)
	setHelp(root)
	return root
}

// newPlugin declares the commands of the kubectl plug-in, kubectl kube-nft.
func newPlugin() *cobra.Command {
	root := &cobra.Command{
		Use:   cluster.Name,
		Short: "Look at kube-nft on all nodes of a cluster",
		Long: `kubectl kube-nft looks at kube-nft, a Kubernetes Service proxy, on all nodes of a cluster. It uses
your kubeconfig and runs commands in the pods of kube-nft: you need the rights to list nodes, and to
list pods and to create pods/exec in their namespace.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl kube-nft"},
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(cluster.Commands(root.PersistentFlags())...)
	root.AddCommand(newVersion("kubectl kube-nft"))
	finish(root)
	return root
}

func newVersion(program string) *cobra.Command {
	var form output.Form
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this binary",
		Example: "  " + program + " version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if form.Value == output.Text {
				return printVersion(cmd.OutOrStdout())
			}
			return form.Write(cmd.OutOrStdout(), &buildVersion{output.Kind("Version"), config.Build(), spokenModules()})
		},
	}
	form.AddFlag(cmd, output.Text, output.JSON, output.YAML)
	return cmd
}

// A buildVersion is the document of the command version.
type buildVersion struct {
	metav1.TypeMeta
	version.Info
	Modules map[string]string `json:"modules"` // versions of the modules that speak to the kernel and the API server
}

// finish gives a root command and those below it what they have in common.
func finish(root *cobra.Command) {
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return config.UsageError{Err: plainly(cmd, err)} })
	root.SetUsageFunc(writeUsage)
	root.InitDefaultHelpCmd()
	refuseArguments(root)
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" {
			cmd.Args = func(_ *cobra.Command, args []string) error {
				below, rest, err := root.Find(args)
				if err == nil && len(rest) > 0 {
					return unknownCommand(below, rest[0])
				}
				return err
			}
		}
	}
}

// suggestedDistance is how many letters of a suggested name may differ.
const suggestedDistance = 2

// printConfig writes the settings as a file for --config, to stdout or to path.
func printConfig(c *config.Config, show bool, path string, stdout io.Writer) error {
	text, err := c.YAML()
	if err != nil {
		return err
	}
	if show {
		_, err = stdout.Write(text)
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

// refuseArguments makes commands refuse arguments unless they declare some, and suggest a command below.
func refuseArguments(cmd *cobra.Command) {
	if cmd.Args == nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
		}
	}
	cmd.SuggestionsMinimumDistance = suggestedDistance
	for _, below := range cmd.Commands() {
		refuseArguments(below)
	}
}

// unknownCommand is the error of a command that is not below cmd.
func unknownCommand(cmd *cobra.Command, name string) error {
	return config.Usagef("unknown command %q%s", name, didYouMean(cmd.SuggestionsFor(name), ""))
}

// didYouMean suggests names, each after a prefix; empty without any.
func didYouMean(names []string, prefix string) string {
	if len(names) == 0 {
		return ""
	}
	return ", did you mean " + prefix + strings.Join(names, " or "+prefix) + "?"
}

// similarFlags lists the flags that cmd shows and that are nearly called name: by cobra's rule for commands.
func similarFlags(cmd *cobra.Command, name string) []string {
	index := &cobra.Command{SuggestionsMinimumDistance: suggestedDistance}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		ofDaemon := cmd.Root().PersistentFlags().Lookup(f.Name) == f
		if !f.Hidden && (!ofDaemon || matters(cmd, f.Name)) {
			index.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	return index.SuggestionsFor(name)
}

// plainly says in plain words which values a flag takes, and which flag an unknown one may be.
func plainly(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		name := unknown.GetSpecifiedName()
		return fmt.Errorf("unknown flag --%s%s", name, didYouMean(similarFlags(cmd, name), "--"))
	}
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	if cause := invalid.Unwrap().Error(); strings.HasPrefix(cause, "expected ") { // one of our own kinds of flags says so
		return fmt.Errorf("--%s %s: %s", invalid.GetFlag().Name, invalid.GetValue(), cause)
	}
	expected, known := map[string]string{
		"bool":     "true or false",
		"int32":    "a whole number, -2147483648 to 2147483647",
		"uint32":   "a whole number, 0 to 4294967295",
		"float32":  "a number",
		"duration": "a duration such as 30s, 5m or 1h",
		"gates":    "NAME=true or NAME=false, with commas between them",
	}[invalid.GetFlag().Value.Type()]
	if !known {
		return err
	}
	return fmt.Errorf("--%s %s: expected %s", invalid.GetFlag().Name, invalid.GetValue(), expected)
}

// A versionFlag is the value of --version: true, false or raw, as kube-proxy has it.
type versionFlag string

const (
	versionPlain versionFlag = "true"
	versionRaw   versionFlag = "raw"
)

// Set implements pflag.Value.
func (v *versionFlag) Set(text string) error {
	on, err := strconv.ParseBool(text)
	switch {
	case text == string(versionRaw):
		*v = versionRaw
	case err != nil:
		return errors.New("expected true, false or raw")
	case on:
		*v = versionPlain
	default:
		*v = ""
	}
	return nil
}

// String implements pflag.Value.
func (v *versionFlag) String() string { return string(*v) }

// Type implements pflag.Value.
func (v *versionFlag) Type() string { return "version" }

// printVersion lists the version, the commit, the toolchain, and the modules that speak to the
// kernel and the API server.
func printVersion(w io.Writer) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this binary carries no build information; build it with go build in module mode")
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	var b strings.Builder
	fmt.Fprintf(&b, "kube-nft %s\n", config.Build().GitVersion)
	if revision := settings["vcs.revision"]; revision != "" {
		fmt.Fprintf(&b, "commit %s of %s\n", revision, settings["vcs.time"])
	}
	fmt.Fprintf(&b, "%s %s/%s\n", info.GoVersion, settings["GOOS"], settings["GOARCH"])
	modules := spokenModules()
	for _, path := range slices.Sorted(maps.Keys(modules)) {
		fmt.Fprintf(&b, "%s %s\n", path, modules[path])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// spokenModules returns the versions of the modules that speak to the kernel and the API server, by path.
func spokenModules() map[string]string {
	modules := make(map[string]string)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			switch dep.Path {
			case "github.com/google/nftables", "github.com/mdlayher/netlink", "k8s.io/client-go":
				modules[dep.Path] = dep.Version
			}
		}
	}
	return modules
}
