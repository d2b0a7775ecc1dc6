// Command kube-nft is a Kubernetes Service proxy on nftables: it watches Services,
// EndpointSlices, ServiceCIDRs and its Node, and keeps the kernel's ruleset equal to them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
)

// Exit codes. exitDiffers is that of a diff that found differences, exitTrouble that of one
// that could not find out. exitConfig says that the configuration file changed; it is not 0
// because service managers are often told to start a program again only after a failure.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitDiffers = 1
	exitTrouble = 2
	exitConfig  = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs one command line and returns the exit code. Errors are one line on stderr.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(withoutArrows(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var differs differsError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &differs):
		return exitDiffers
	case errors.Is(err, errConfigChanged): // the log has said so
		return exitConfig
	}
	fmt.Fprintln(stderr, "kube-nft: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	var usage usageError
	var setting *config.Error
	var trouble troubleError
	switch {
	case errors.As(err, &usage), errors.As(err, &setting):
		return exitUsage
	case errors.As(err, &trouble):
		return exitTrouble
	}
	return exitFailed
}

// newRoot declares the commands. The root command itself is the daemon.
func newRoot() *cobra.Command {
	var o options
	var dryRun, showConfig, initOnly, cleanUp, version bool
	var writeConfig string
	root := &cobra.Command{
		Use:   "kube-nft",
		Short: "A Kubernetes Service proxy on nftables",
		Long: `kube-nft makes Kubernetes Services work on this node: it watches Services,
EndpointSlices, ServiceCIDRs and its Node, from the API server or from files, and
programs nftables over netlink so that traffic to cluster IPs, node ports,
load-balancer IPs and external IPs reaches ready endpoints.`,
		Args:          noArguments,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return printVersion(cmd.OutOrStdout())
			}
			if err := o.complete(); err != nil {
				return err
			}
			switch {
			case showConfig:
				o.notices(o.newLog(cmd.ErrOrStderr()))
				return o.showConfig(cmd.OutOrStdout())
			case writeConfig != "":
				o.notices(o.newLog(cmd.ErrOrStderr()))
				return o.writeConfig(writeConfig)
			case dryRun:
				return dryRunCommand(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
			case initOnly:
				return o.prepare(cmd.Context(), cmd.ErrOrStderr())
			case cleanUp:
				o.notices(o.newLog(cmd.ErrOrStderr()))
				r := remover{timeout: cleanupTimeout, journal: cmd.ErrOrStderr()}
				return r.run(cmd.Context())
			}
			return run(cmd.Context(), &o, cmd.ErrOrStderr())
		},
	}
	root.SuggestionsMinimumDistance = 2 // letters that differ
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{plainly(err)} })
	o.addFlags(root.PersistentFlags())
	root.Flags().BoolVar(&dryRun, "dry-run", false, "print the ruleset as nft text and exit, without privileges and without touching the kernel")
	root.Flags().BoolVar(&cleanUp, "cleanup", false, "do what the command cleanup does, and exit")
	root.Flags().BoolVar(&version, "version", false, "do what the command version does, and exit")
	root.Flags().BoolVar(&initOnly, "init-only", false, "set the connection tracking sysctls and exit, for an init container that may write them")
	root.Flags().BoolVar(&showConfig, "show-config", false, "print the settings that result from defaults, --config and flags, as a file for --config, and exit")
	root.Flags().StringVar(&writeConfig, "write-config-to", "", "write what --show-config prints to this file and exit")
	root.SetGlobalNormalizationFunc(config.NormalizeName)
	root.AddCommand(newVersion(), newDiff(&o), newStatus(&o), newGet(), newExplain(&o), newMigrate(&o), newCleanup(), newRelease())
	setHelp(root)
	return root
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		return usagef("unknown command %q, did you mean %s?", args[0], strings.Join(meant, " or "))
	}
	return usagef("unknown command %q", args[0])
}
