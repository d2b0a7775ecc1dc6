package config

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/version"
)

// Build says what this binary was built from, as components of Kubernetes do. What the build does
// not tell is empty.
func Build() version.Info {
	build := version.Info{GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return build
	}
	build.GitVersion = info.Main.Version
	if major, minor, found := strings.Cut(strings.TrimPrefix(build.GitVersion, "v"), "."); found {
		build.Major = major
		build.Minor, _, _ = strings.Cut(minor, ".")
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			build.GitCommit = setting.Value
		case "vcs.time":
			build.BuildDate = setting.Value // of the commit: the same source gives the same binary
		case "vcs.modified":
			build.GitTreeState = map[string]string{"true": "dirty", "false": "clean"}[setting.Value]
		}
	}
	return build
}

// userAgent is how kube-nft names itself to the API server.
func userAgent() string {
	build := Build()
	agent := fmt.Sprintf("kube-nft/%s (%s)", build.GitVersion, build.Platform)
	if len(build.GitCommit) >= 7 {
		agent += " " + build.GitCommit[:7]
	}
	return agent
}
