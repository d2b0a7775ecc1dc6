package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// Names of rows that charts show.
const (
	changeOwn   = "one-endpoint change: our time, object to bytes"
	changeAll   = "one-endpoint change: object to commit"
	changeFloor = "one-endpoint change: floor, raw commit"
)

// rounds is how often a small change is repeated; the median is taken.
const rounds = 60

// A cost is what changes of one kind took.
type cost struct {
	own    []time.Duration // from the object to the encoded batch
	commit []time.Duration // from the object to the end of the commit
	raw    []time.Duration // the kernel's part, by a bare socket
	length int             // of the latest batch
}

// change brings what the tracker holds into the kernel and notes what that took. Every
// other call commits by the bare socket. Changes should come in groups of which the calls
// of either kind are alike.
func (l *loaded) change(c *cost, bare bool, set func() error) error {
	begin := time.Now()
	if err := set(); err != nil {
		return err
	}
	l.ruleset.Apply(l.tracker.Take())
	batch := l.ruleset.Changes()
	if bare {
		return l.changeBare(c, &batch, begin)
	}
	if err := l.kernel.Commit(context.Background(), batch); err != nil {
		return err
	}
	c.commit = append(c.commit, time.Since(begin))
	l.ruleset.Committed()
	return nil
}

func (l *loaded) changeBare(c *cost, batch *nft.Batch, begin time.Time) error {
	var encoding wire.Encoding
	if err := encoding.Encode(batch, wire.Ours, 1); err != nil {
		return err
	}
	c.own, c.length = append(c.own, time.Since(begin)), len(encoding.Buf)
	raw, err := l.floor.commit(encoding.Buf)
	c.raw = append(c.raw, raw)
	l.ruleset.Committed()
	return err
}

// measureChanges notes what small changes of a loaded cluster take.
func measureChanges(sheet *sheet, at size, l *loaded) error {
	var one, many cost
	for i := range 2 * rounds { // each in another Service
		if err := l.changeEndpoint(&one, i%2 == 1, at, i); err != nil {
			return fmt.Errorf("change of one endpoint: %w", err)
		}
	}
	for i := range 2 * rounds {
		if err := l.addService(&many, i%2 == 1, at, i); err != nil {
			return fmt.Errorf("one more Service: %w", err)
		}
	}
	note := func(name string, d []time.Duration) { sheet.duration(at, name, quantile(d, 0.5)) }
	note(changeOwn, one.own)
	note(changeAll, one.commit)
	note(changeFloor, one.raw)
	sheet.set(at, "one-endpoint change: batch length", octets, float64(one.length))
	note("one-Service add: our time, object to bytes", many.own)
	note("one-Service add: object to commit", many.commit)
	note("one-Service add: floor, raw commit", many.raw)
	sheet.set(at, "one-Service add: batch length", octets, float64(many.length))
	return nil
}

// changeEndpoint takes one endpoint out of a Service and puts it back.
func (l *loaded) changeEndpoint(c *cost, bare bool, at size, i int) error {
	i %= at.services // a small cluster has fewer Services than there are rounds
	addrs := at.endpointsOf(i)
	for _, list := range [][]netip.Addr{addrs[:len(addrs)-1], addrs} {
		slice := newSlice(serviceName(i), 0, list)
		if err := l.change(c, bare, func() error { return l.tracker.SetSlice(slice) }); err != nil {
			return err
		}
	}
	return nil
}

// addService adds a Service with all its endpoints.
func (l *loaded) addService(c *cost, bare bool, at size, i int) error {
	name := fmt.Sprintf("added-%d", i)
	service := newService(name, clusterIP(maxServices+i))
	slice := newSlice(name, 0, lab.Addresses(lab.After(firstNewcomer, i*at.endpoints), at.endpoints))
	return l.change(c, bare, func() error {
		if err := l.tracker.SetService(service); err != nil {
			return err
		}
		return l.tracker.SetSlice(slice)
	})
}

// The Service whose rolling restart is measured.
const (
	rollingName      = "rolling"
	rollingEndpoints = 1000
)

var rollingIP = lab.After(serviceCIDR.Addr(), 1)

// A rollout is the restart of all pods of one Service: again and again, one comes and then
// an old one goes.
type rollout struct {
	parts [][]netip.Addr // the endpoints of each slice
	fresh *sequence
}

func newRollout(fresh *sequence) *rollout {
	r := &rollout{parts: make([][]netip.Addr, rollingEndpoints/perSlice), fresh: fresh}
	for i := range r.parts {
		for range perSlice {
			r.parts[i] = append(r.parts[i], fresh.next())
		}
	}
	return r
}

func (r *rollout) slice(part int) *discoveryv1.EndpointSlice {
	return newSlice(rollingName, part, r.parts[part])
}

// come adds an endpoint for pod i and returns its address and the changed slice; leave
// takes the old one out.
func (r *rollout) come(i int) (netip.Addr, *discoveryv1.EndpointSlice) {
	part := i / perSlice
	addr := r.fresh.next()
	r.parts[part] = append(r.parts[part], addr)
	return addr, r.slice(part)
}

func (r *rollout) leave(i int) *discoveryv1.EndpointSlice {
	part := i / perSlice
	r.parts[part] = r.parts[part][1:]
	return r.slice(part)
}

// measureRollout notes what the steps of a rolling restart take.
func measureRollout(sheet *sheet, at size, l *loaded) error {
	var c cost
	var fresh sequence
	fresh.used.Store(1 << 20)
	r := newRollout(&fresh)
	if err := l.change(&cost{}, false, func() error { return l.loadRollout(r) }); err != nil {
		return fmt.Errorf("add the Service to restart: %w", err)
	}
	for i := range rounds {
		_, slice := r.come(i)
		for _, slice := range []*discoveryv1.EndpointSlice{slice, r.leave(i)} {
			if err := l.change(&c, i%2 == 1, func() error { return l.tracker.SetSlice(slice) }); err != nil {
				return fmt.Errorf("rolling restart: %w", err)
			}
		}
	}
	sheet.duration(at, "rolling restart of 1000 endpoints, each step: our time, object to bytes", quantile(c.own, 0.5))
	sheet.duration(at, "rolling restart, each step: object to commit", quantile(c.commit, 0.5))
	sheet.duration(at, "rolling restart, each step: floor, raw commit", quantile(c.raw, 0.5))
	return nil
}

func (l *loaded) loadRollout(r *rollout) error {
	for i := range r.parts {
		if err := l.tracker.SetSlice(r.slice(i)); err != nil {
			return err
		}
	}
	return l.tracker.SetService(newService(rollingName, rollingIP))
}
