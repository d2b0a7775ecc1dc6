package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// The frontends of the example manifests that the demo uses.
const (
	clusterIP    = "10.96.0.80:80"
	clusterIPv6  = "[fd00:10:96::80]:80"
	nodePort     = "192.168.0.2:30080"
	emptyService = "10.96.0.99:80"
)

// A demo is one run of the program.
type demo struct {
	out     io.Writer
	binary  string
	dir     string // the copy of the manifests
	network *network
	servers []*webServer
	proxy   *lab.Process
	shell   *host // the pod that sends requests
}

// newDemo builds the network, with web servers that run, and copies the manifests.
func newDemo(out io.Writer, binary, manifests string) (d *demo, err error) {
	d = &demo{out: out}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.binary, err = filepath.Abs(binary); err != nil {
		return d, err
	}
	if d.dir, err = os.MkdirTemp("", "kube-nft-demo-"); err != nil {
		return d, err
	}
	if err := os.CopyFS(d.dir, os.DirFS(manifests)); err != nil {
		return d, fmt.Errorf("copy manifests: %w", err)
	}
	if d.network, err = newNetwork(); err != nil {
		return d, err
	}
	for _, name := range []string{"web-1", "web-2", "web-3", "web-4"} {
		server, err := d.network.pods[name].serve()
		if err != nil {
			return d, err
		}
		d.servers = append(d.servers, server)
	}
	d.shell = d.network.pods["shell"]
	return d, nil
}

// close ends kube-nft and the servers, and removes everything that the demo made.
func (d *demo) close() (err error) {
	if d.proxy != nil {
		d.proxy.Kill()
	}
	for _, server := range d.servers {
		err = errors.Join(err, server.Close())
	}
	if d.network != nil {
		err = errors.Join(err, d.network.close())
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// show takes the steps one after the other; each prints what it has seen.
func (d *demo) show(ctx context.Context) error {
	kernel, err := kernelRelease()
	if err != nil {
		return err
	}
	d.printf("kube-nft on Linux %s: a node, its pods and a client, each in a network namespace\n", kernel)
	for _, step := range []func(context.Context) error{
		d.showStart, d.showSpread, d.showChange, d.showRefusal, d.showEnd,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.printf("\nEverything as expected. The namespaces end with this program; nothing is left behind.\n")
	return nil
}

func (d *demo) printf(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

// kernelRelease returns what uname -r prints.
func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}

// milliseconds is how durations are printed.
func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
