package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// measureWorst measures worst cases, each beside its friendly twin. What worlds cost that stand still is measured by
// BenchmarkWorlds of nft/services.
func (o *options) measureWorst(c *comparison) error {
	type measurement struct {
		name    string
		measure func(*comparison) error
	}
	all := []measurement{
		{"one range changes", o.measureRangeChange},
		{"connections", o.measureFlows},
		{"clients with affinity", o.measureAffinity},
		{"flaps", o.measureFairness},
		{"SIGTERM", o.measureFarewell},
		{"usual log", o.measureLog},
	}
	for _, t := range o.tenants() {
		all = append(all, measurement{t.name, func(c *comparison) error { return o.measureTenant(c, t) }})
	}
	for _, of := range all {
		if !o.wanted(of.name) {
			continue
		}
		if err := of.measure(c); err != nil {
			return fmt.Errorf("worst cases: %w", err)
		}
	}
	return nil
}

// wanted reports whether a worst case is to be measured.
func (o *options) wanted(name string) bool { return o.only == nil || o.only.MatchString(name) }

// part takes a share of a number, at least 1: small runs try the program.
func (o *options) part(n int) int { return max(1, int(o.share*float64(n))) }

// The neighbour is a Service that has nothing to do with the others.
const (
	neighbourName      = "neighbour"
	neighbourEndpoints = 10
)

var neighbourIP = lab.After(serviceCIDR.Addr(), 2)

// newWorldly returns a live cluster with the content of a world, and the neighbour.
func newWorldly(binary string, w world) (*live, error) {
	l, err := newEmptyLive(binary)
	if err != nil {
		return nil, err
	}
	l.flags, l.last = []string{"--conntrack-max-per-core", "0"}, w.last // all namespaces share the limit
	err = l.space.Do(func() error {
		return lab.AddRoute("sink", balancerCIDR, netip.Addr{})
	})
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	l.server.Apply(newService(neighbourName, neighbourIP))
	l.moveNeighbour()
	w.fill(l.server)
	return l, nil
}

// moveNeighbour gives the neighbour a fresh endpoint for one that it has had.
func (l *live) moveNeighbour() netip.Addr {
	addrs := lab.Addresses(lab.After(clientAddress.Addr(), -2*neighbourEndpoints), neighbourEndpoints)
	addrs[0] = l.fresh.next()
	slice := newSlice(neighbourName, 0, addrs)
	l.observer.expect(addrs[0])
	l.server.Apply(slice)
	return addrs[0]
}

// neighbour changes the neighbour so many times, at random moments, and returns the lags.
func (l *live) neighbour(rounds int) ([]time.Duration, error) {
	random := rand.New(rand.NewPCG(3, 4))
	lags := make([]time.Duration, 0, rounds)
	for range rounds {
		time.Sleep(calm/2 + time.Duration(random.Int64N(int64(calm))))
		lag, err := l.observer.await(l.moveNeighbour())
		if err != nil {
			return nil, err
		}
		lags = append(lags, lag)
	}
	return lags, nil
}

// neighbourFor changes the neighbour for a while.
func (l *live) neighbourFor(d time.Duration) (lags []time.Duration, err error) {
	for begin := time.Now(); time.Since(begin) < d; {
		more, err := l.neighbour(5)
		if err != nil {
			return nil, err
		}
		lags = append(lags, more...)
	}
	return lags, nil
}

// tables reads what the kernel holds, without what packets have put into affinity maps.
func (l *live) tables() (tables nft.Tables, err error) {
	err = l.withClient(func(client *kernel.Client) (err error) {
		tables, _, err = client.Read(context.Background())
		return err
	})
	return tables, err
}

func (l *live) withClient(do func(*kernel.Client) error) error {
	return l.space.Do(func() error {
		client, err := kernel.Open()
		if err != nil {
			return err
		}
		defer client.Close()
		return do(client)
	})
}

// alive fails if kube-nft says that it does not live.
func (l *live) alive() error {
	const url = "http://127.0.0.1:10256/livez"
	response, err := l.get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}
