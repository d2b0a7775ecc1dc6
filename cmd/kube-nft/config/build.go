package config

import (
	_ "embed"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/version"
)

// archived is the version of a source archive, which git archive writes there. In a clone it is a placeholder,
// and Go knows the version from git.
//
//go:embed version.txt
var archived string

// versionOf returns the version to show: the archive's if the source was one, else the module's.
func versionOf(archive, module string) string {
	if archive = strings.TrimSpace(archive); archive != "" && !strings.Contains(archive, "$") {
		return archive
	}
	return module
}

// Build says what this binary was built from, as components of Kubernetes do. What the build does
// not tell is empty.
func Build() version.Info {
	build := version.Info{GoVersion: runtime.Version(), Compiler: runtime.Compiler,
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return build
	}
	build.GitVersion = versionOf(archived, info.Main.Version)
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
	// (devel) without a version
	agent := fmt.Sprintf("kube-nft/%s (%s)", strings.Trim(build.GitVersion, "()"), build.Platform)
	if len(build.GitCommit) >= 7 {
		agent += " " + build.GitCommit[:7]
	}
	return agent
}
