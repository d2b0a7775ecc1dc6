// Command demo shows kube-nft at work on this machine: it is the program behind make run.
//
// It makes a node, its pods and a client outside, each in a network namespace of its own,
// starts kube-nft on a copy of the example manifests, sends requests, changes the
// manifests, and prints what happened. Everything that it prints has been checked; it
// exits with 1 if something is not as it should be. It needs root, and no program besides
// kube-nft. Nothing of this machine's own network is touched, and the namespaces end with
// the process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	binary := flag.String("binary", "bin/kube-nft", "the kube-nft to show")
	manifests := flag.String("manifests", "deploy/examples", "directory of manifests to work on a copy of")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Stdout, *binary, *manifests)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// run shows everything and cleans up, whether it ends well or not.
func run(ctx context.Context, out io.Writer, binary, manifests string) (err error) {
	d, err := newDemo(out, binary, manifests)
	if err != nil {
		return err
	}
	defer func() {
		if closing := d.close(); err == nil {
			err = closing
		}
	}()
	err = d.show(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted; everything is cleaned up")
	}
	return err
}
