package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"

	"github.com/kube-nft/kube-nft/integration/daemon"
)

// flags are those of kube-nft and of kube-nft diff.
func flags(kubeconfig string) []string {
	var pods, nodes []string
	for _, f := range families {
		pods, nodes = append(pods, f.pods.String()), append(nodes, f.nodes.String())
	}
	return []string{
		"--kubeconfig", kubeconfig, "--hostname-override", nodeName,
		"--cluster-cidr", strings.Join(pods, ","), "--nodeport-addresses", strings.Join(nodes, ","),
	}
}

// startDaemon starts kube-nft.
func startDaemon(binary, kubeconfig string) (*daemon.Daemon, error) {
	return daemon.Start(append([]string{binary}, flags(kubeconfig)...)...)
}

// startOwner starts kube-nft as the owner of its tables, on a node that seems to have been
// running for some other time, up to ten years.
func startOwner(binary, kubeconfig string, random *rand.Rand) (*daemon.Daemon, error) {
	const tenYears = 10 * 365 * 24 * 3600
	uptime := fmt.Sprint(random.IntN(tenYears))
	argv := []string{"unshare", "--time", "--monotonic", uptime, "--boottime", uptime, "--", binary, "--table-ownership=auto"}
	return daemon.Start(append(argv, flags(kubeconfig)...)...)
}

// alive returns an error with the end of the log if kube-nft has ended.
func alive(d *daemon.Daemon) error {
	select {
	case <-d.Exited():
		return d.Failure(fmt.Errorf("kube-nft has ended: %s", d.State()))
	default:
		return nil
	}
}

// terminate ends kube-nft as a service manager does. It has to exit with 0.
func terminate(d *daemon.Daemon) error {
	if err := errors.Join(alive(d), d.Terminate()); err != nil {
		return err
	}
	if d.State().ExitCode() != 0 {
		return d.Failure(fmt.Errorf("on SIGTERM: %s", d.State()))
	}
	return nil
}

// diff returns what kube-nft would change in the kernel: nothing, if that holds what a fresh
// start would program.
func diff(binary, kubeconfig string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(binary, append([]string{"diff"}, flags(kubeconfig)...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && stdout.Len() > 0 {
		return stdout.String(), nil
	}
	if err != nil {
		return "", fmt.Errorf("kube-nft diff: %w\n%s", err, stderr.String())
	}
	return "", nil
}
