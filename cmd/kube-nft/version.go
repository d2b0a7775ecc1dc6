package main

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print what this binary was built from",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printVersion(cmd.OutOrStdout())
		},
	}
}

func printVersion(w io.Writer) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this binary carries no build information; build it with go build in module mode")
	}
	_, err := io.WriteString(w, versionText(info))
	return err
}

// versionText lists the version, the commit, the toolchain and the modules that decide how
// the kernel and the API server are spoken to.
func versionText(info *debug.BuildInfo) string {
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	var b strings.Builder
	fmt.Fprintf(&b, "kube-nft %s\n", info.Main.Version)
	if revision := settings["vcs.revision"]; revision != "" {
		fmt.Fprintf(&b, "commit %s of %s\n", revision, settings["vcs.time"])
	}
	fmt.Fprintf(&b, "%s %s/%s\n", info.GoVersion, settings["GOOS"], settings["GOARCH"])
	for _, dep := range info.Deps {
		switch dep.Path {
		case "github.com/google/nftables", "github.com/mdlayher/netlink", "k8s.io/client-go":
			fmt.Fprintf(&b, "%s %s\n", dep.Path, dep.Version)
		}
	}
	return b.String()
}
