package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

const (
	leaving, joining = "web-3", "web-4"
	changeTimeout    = time.Minute
	// probers send requests all the time, side by side, while the manifest changes.
	probers = 4
	// settled is how many answers of the server that joins end the probing.
	settled = 100
)

// A probe is one of the requests that are sent all the time.
type probe struct {
	started, ended time.Time
	server         string
	err            error
}

// A transition is what the probes show of a change.
type transition struct {
	joined time.Duration // from the change to the first answer of the server that joins
	left   time.Duration // from the change to the start of the last request answered by the one that leaves
	probes int           // requests sent since the change
}

// showChange replaces an endpoint in a manifest and shows that traffic follows.
func (d *demo) showChange(ctx context.Context) error {
	d.printf("\n3. Edit the manifest, with requests all the time: %s leaves, %s joins\n", leaving, joining)
	probing, stop := context.WithCancel(ctx)
	probes := d.probe(probing)
	changed, after, err := d.change(ctx, probes)
	stop()
	for range probes { // the probers end
	}
	if err != nil {
		return err
	}
	seen, err := observe(changed, after)
	if err != nil {
		return err
	}
	d.printf("   first answer of %s          %8s after the file was renamed into place\n", joining,
		milliseconds(seen.joined))
	d.printf("   last connection to %s       %8s\n", leaving, milliseconds(seen.left))
	d.printf("   requests meanwhile, failed      %d, 0\n\n", seen.probes)
	t := newSpreadTable(d.out, "web-1", "web-2", joining)
	for _, way := range d.ways() {
		if err := t.row(ctx, way); err != nil {
			return err
		}
	}
	return t.flush()
}

// probe sends requests through the cluster IP until ctx ends; then the channel is closed.
func (d *demo) probe(ctx context.Context) <-chan probe {
	probes := make(chan probe)
	var running sync.WaitGroup
	for range probers {
		running.Go(func() {
			for ctx.Err() == nil {
				p := probe{started: time.Now()}
				var answer answer
				answer, p.err = d.shell.get(ctx, clusterIP)
				p.ended, p.server = time.Now(), answer.server
				select {
				case probes <- p:
				case <-ctx.Done():
				}
			}
		})
	}
	go func() {
		running.Wait()
		close(probes)
	}()
	return probes
}

// change edits the manifest while probes come in. It returns the time of the change and
// the probes that ended after it.
func (d *demo) change(ctx context.Context, probes <-chan probe) (time.Time, []probe, error) {
	for range settled {
		<-probes
	}
	changed := time.Now()
	if err := d.replaceEndpoint(); err != nil {
		return changed, nil, err
	}
	var after []probe
	limit := time.After(changeTimeout)
	for joined := 0; joined < settled; {
		select {
		case p := <-probes:
			after = append(after, p)
			if p.server == joining {
				joined++
			}
		case <-ctx.Done():
			return changed, nil, ctx.Err()
		case <-limit:
			return changed, nil, d.proxy.Failure(fmt.Errorf("%s answered %d times within %s after it joined", joining, joined,
				changeTimeout))
		}
	}
	return changed, after, nil
}

// replaceEndpoint replaces the address of the leaving server by the joining server's, in both
// EndpointSlices of Service shop/web at once.
func (d *demo) replaceEndpoint() error {
	path := filepath.Join(d.dir, "20-web.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var pairs []string
	old, young := podAddresses("13"), podAddresses("14")
	for i := range old {
		if !strings.Contains(string(text), old[i].String()) {
			return fmt.Errorf("%s does not name endpoint %s", path, old[i])
		}
		pairs = append(pairs, old[i].String(), young[i].String())
	}
	return lab.Replace(path, strings.NewReplacer(pairs...).Replace(string(text)))
}

// observe derives a transition from the probes that ended after the change. It fails if a probe was
// lost. It fails too if the leaving server answered a probe that started after the first answer of
// the joining one: the kernel changes both at once.
func observe(changed time.Time, probes []probe) (transition, error) {
	t := transition{joined: -1, probes: len(probes)}
	for _, p := range probes {
		if p.err != nil {
			return t, fmt.Errorf("a request failed while endpoints changed: %w", p.err)
		}
		switch p.server {
		case joining:
			if took := p.ended.Sub(changed); t.joined < 0 || took < t.joined {
				t.joined = took
			}
		case leaving:
			t.left = max(t.left, p.started.Sub(changed))
		}
	}
	if t.joined < 0 {
		return t, fmt.Errorf("%s never answered", joining)
	}
	if t.left > t.joined {
		return t, fmt.Errorf("%s was reached %s after the change, %s answered after %s already",
			leaving, milliseconds(t.left), joining, milliseconds(t.joined))
	}
	return t, nil
}
