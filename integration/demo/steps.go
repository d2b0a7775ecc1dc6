package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

const (
	// silence is for how long no server may answer before kube-nft starts.
	silence = 900 * time.Millisecond
	// startTimeout is how long kube-nft may take to serve its first connection.
	startTimeout = time.Minute
	// startAttempt is how long the first attempt until then lasts: before there are rules, the
	// node drops most packets, since the kernel limits its errors about missing routes. Each attempt
	// lasts a little longer than the one before, for a busy machine.
	startAttempt = 10 * time.Millisecond
)

// showStart starts kube-nft and waits for the first answer through the cluster IP.
func (d *demo) showStart(ctx context.Context) (err error) {
	d.printf("\n1. Start: kube-nft --manifests DIR --hostname-override node-a --cluster-cidr 10.244.0.0/16,...\n")
	attempt, cancel := context.WithTimeout(ctx, silence)
	_, err = d.shell.get(attempt, clusterIP)
	if cancel(); err == nil {
		return fmt.Errorf("%s answers before kube-nft runs", clusterIP)
	}
	started := time.Now()
	err = d.network.node.Do(func() (err error) {
		d.proxy, err = lab.StartProcess(append([]string{d.binary}, d.flags()...)...)
		return err
	})
	if err != nil {
		return fmt.Errorf("start kube-nft: %w", err)
	}
	if err := d.awaitAnswer(ctx); err != nil {
		return err
	}
	d.printf("   first answer through the cluster IP %s after the program was started\n",
		milliseconds(time.Since(started)))
	return nil
}

// flags are the flags of kube-nft and kube-nft diff.
func (d *demo) flags() []string {
	return []string{"--manifests", d.dir, "--hostname-override", lab.NodeName, "--cluster-cidr",
		"10.244.0.0/16,fd00:10:244::/64"}
}

func (d *demo) awaitAnswer(ctx context.Context) error {
	limit := time.After(startTimeout)
	for lasts := startAttempt; ; lasts = min(lasts*11/10, requestTimeout) {
		attempt, cancel := context.WithTimeout(ctx, lasts)
		_, err := d.shell.get(attempt, clusterIP)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.proxy.Exited():
			return d.proxy.Running()
		case <-limit:
			return d.proxy.Failure(fmt.Errorf("no answer through %s within %s: %v", clusterIP, startTimeout, err))
		case <-time.After(time.Millisecond):
		}
	}
}

// showSpread sends requests through all kinds of frontends.
func (d *demo) showSpread(ctx context.Context) error {
	d.printf("\n2. %d requests to each frontend of Service shop/web, every one a new connection\n\n", requests)
	t := newSpreadTable(d.out, "web-1", "web-2", "web-3")
	for _, way := range d.ways() {
		if err := t.row(ctx, way); err != nil {
			return err
		}
	}
	return t.flush()
}

// ways are the ways to Service shop/web, with the client address that its servers should
// see: pods keep their own, connections from outside are masqueraded.
func (d *demo) ways() []way {
	return []way{
		{"pod", d.shell, "cluster IP", clusterIP, podAddresses("20")[0], "the pod's own"},
		{"pod", d.shell, "cluster IP", clusterIPv6, podAddresses("20")[1], "the pod's own"},
		{"outside", d.network.client, "node port", nodePort, podAddresses("1")[0], "the node's"},
	}
}

// showRefusal connects to a Service without endpoints.
func (d *demo) showRefusal(ctx context.Context) error {
	d.printf("\n4. Connect to Service shop/reports, which has no endpoints, at %s\n", emptyService)
	started := time.Now()
	_, err := d.shell.get(ctx, emptyService)
	took := time.Since(started)
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("connection to %s, a Service without endpoints: got %v, want it refused", emptyService, err)
	}
	d.printf("   refused after %s\n", milliseconds(took))
	return nil
}

// showEnd ends kube-nft and shows that its rules stay and are complete.
func (d *demo) showEnd(ctx context.Context) error {
	d.printf("\n5. Terminate kube-nft\n")
	started := time.Now()
	if err := d.proxy.Terminate(); err != nil {
		return err
	}
	d.printf("   SIGTERM           exited with 0 after %s, the rules stay\n", milliseconds(time.Since(started)))
	for i := range requests {
		if _, err := d.network.client.get(ctx, nodePort); err != nil {
			return fmt.Errorf("request %d after kube-nft has ended: %w", i+1, err)
		}
	}
	d.printf("   without kube-nft  %d of %d requests to the node port are answered\n", requests, requests)
	var diff lab.Output
	err := d.network.node.Do(func() (err error) {
		diff, err = lab.Execute(append([]string{d.binary, "diff"}, d.flags()...)...)
		return err
	})
	if err != nil || diff != (lab.Output{}) {
		return errors.Join(err, fmt.Errorf("kube-nft diff exits with %d and says, want nothing:\n%s%s", diff.Code,
			diff.Stdout, diff.Stderr))
	}
	d.printf("   kube-nft diff     exits with 0: the kernel holds what the manifests say\n")
	return nil
}
