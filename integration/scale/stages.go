package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/nft/wire"
	"github.com/kube-nft/kube-nft/tracker"
)

// encoded are the objects of a cluster as an API server sends them, in protobuf.
type encoded struct{ services, slices [][]byte }

func encodeObjects(s size) (*encoded, error) {
	var e encoded
	for i := range s.services {
		service, err := newService(serviceName(i), clusterIP(i)).Marshal()
		if err != nil {
			return nil, err
		}
		slice, err := newSlice(serviceName(i), 0, s.endpointsOf(i)).Marshal()
		if err != nil {
			return nil, err
		}
		e.services, e.slices = append(e.services, service), append(e.slices, slice)
	}
	return &e, nil
}

// decode turns objects into the tracker's model.
func (e *encoded) decode() (*tracker.Tracker, error) {
	t := tracker.New(tracker.Config{NodeName: lab.NodeName})
	if err := t.SetNode(newNode()); err != nil {
		return nil, err
	}
	for i := range e.services {
		var service corev1.Service
		var slice discoveryv1.EndpointSlice
		if err := service.Unmarshal(e.services[i]); err != nil {
			return nil, err
		}
		if err := slice.Unmarshal(e.slices[i]); err != nil {
			return nil, err
		}
		if err := t.SetService(&service); err != nil {
			return nil, err
		}
		if err := t.SetSlice(&slice); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// rulesetConfig is the daemon's, with the flags of startDaemon.
func rulesetConfig() services.Config {
	return services.Config{
		Families:      nft.Families[:],
		MasqueradeBit: 14,
		AffinitySize:  65536,
		Pods:          map[nft.Family]layout.PodMatch{nft.IP: {CIDR: podCIDR}},
	}
}

// A start is how long each step of a cold start in this process took.
type start struct {
	decode, compile, diff, encode time.Duration
	commit                        time.Duration // encoding included
	raw                           time.Duration // the same bytes by a bare socket
	read                          time.Duration // of everything back, as a restart does
	bytes, elements               int
}

// own is the time between the arrival of the lists and the end of the commit.
func (s *start) own() time.Duration { return s.compile + s.diff + s.commit }

// A loaded cluster is in this process and in the kernel.
type loaded struct {
	tracker *tracker.Tracker
	ruleset *services.Ruleset
	kernel  *kernel.Client
	floor   *floor
	space   *lab.Namespace
}

func (l *loaded) close() {
	if l.kernel != nil {
		l.kernel.Close()
	}
	l.floor.close()
	l.space.Close()
}

// load goes through all steps of a cold start.
func load(e *encoded) (*loaded, *start, error) {
	var s start
	runtime.GC()
	at := time.Now()
	t, err := e.decode()
	if err != nil {
		return nil, nil, err
	}
	delta := t.Take()
	s.decode = lap(&at)
	ruleset := services.NewRuleset(rulesetConfig())
	ruleset.Apply(delta)
	s.compile = lap(&at)
	batch := change.Diff(nft.Tables{}, ruleset.Want())
	s.diff = lap(&at)
	s.elements = batch.ElementCount()
	if s.raw, s.encode, s.bytes, err = rawCommit(&batch); err != nil {
		return nil, nil, err
	}
	l := &loaded{tracker: t, ruleset: ruleset}
	if err := l.open(); err != nil {
		return nil, nil, err
	}
	runtime.GC()
	at = time.Now()
	if err := l.kernel.Commit(context.Background(), batch); err != nil {
		l.close()
		return nil, nil, err
	}
	s.commit = lap(&at)
	ruleset.Committed()
	if _, _, err = l.kernel.Read(context.Background()); err != nil {
		l.close()
		return nil, nil, err
	}
	s.read = lap(&at)
	return l, &s, nil
}

// lap returns the time since *at and sets it to now.
func lap(at *time.Time) time.Duration {
	before := *at
	*at = time.Now()
	return at.Sub(before)
}

// rawCommit encodes a batch and commits it in a namespace that goes at once.
func rawCommit(batch *nft.Batch) (raw, encode time.Duration, length int, err error) {
	at := time.Now()
	var encoding wire.Encoding
	if err := encoding.Encode(batch, wire.Ours, 1); err != nil {
		return 0, 0, 0, err
	}
	b := encoding.Buf
	encode = lap(&at)
	s, err := newSpace(false)
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.Close()
	err = s.Do(func() error {
		f, err := openFloor()
		if err != nil {
			return err
		}
		defer f.close()
		raw, err = f.commit(b)
		return err
	})
	return raw, encode, len(b), err
}

// open opens both ways to the kernel in a new namespace.
func (l *loaded) open() (err error) {
	if l.space, err = newSpace(false); err != nil {
		return err
	}
	return l.space.Do(func() (err error) {
		if l.floor, err = openFloor(); err != nil {
			return err
		}
		l.kernel, err = kernel.Open()
		return err
	})
}

// measureStart runs a cold start several times and notes the least time of each step.
func measureStart(sheet *sheet, at size, runs int) (*loaded, error) {
	objects, err := encodeObjects(at)
	if err != nil {
		return nil, err
	}
	var last *loaded
	var starts []*start
	for range runs {
		if last != nil {
			last.close()
		}
		var s *start
		if last, s, err = load(objects); err != nil {
			return nil, fmt.Errorf("cold start of %s: %w", at, err)
		}
		starts = append(starts, s)
	}
	recordStart(sheet, at, starts)
	return last, nil
}

func recordStart(sheet *sheet, at size, starts []*start) {
	smallest := func(step func(*start) time.Duration) time.Duration {
		var list []time.Duration
		for _, s := range starts {
			list = append(list, step(s))
		}
		return least(list)
	}
	note := func(name string, step func(*start) time.Duration) { sheet.duration(at, name, smallest(step)) }
	sheet.set(at, "elements", count, float64(starts[0].elements))
	sheet.set(at, "batch length", octets, float64(starts[0].bytes))
	note("decode to model", func(s *start) time.Duration { return s.decode })
	note("compile", func(s *start) time.Duration { return s.compile })
	note("diff", func(s *start) time.Duration { return s.diff })
	note("encode", func(s *start) time.Duration { return s.encode })
	note("commit (encode included)", func(s *start) time.Duration { return s.commit })
	note(coldAfterLists, (*start).own)
	note(coldFloor, func(s *start) time.Duration { return s.raw })
	own, raw := smallest((*start).own), smallest(func(s *start) time.Duration { return s.raw })
	sheet.set(at, "all of it / floor", ratio, float64(own)/float64(raw))
	note("read everything back", func(s *start) time.Duration { return s.read })
}

// Names of rows that charts show.
const (
	coldAfterLists = "compile to commit: cold start after the lists"
	coldFloor      = "floor: raw commit of the same bytes"
)
