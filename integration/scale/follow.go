package main

import (
	"fmt"
	"net/netip"
	"time"
)

// Names of rows that charts show.
const (
	coldDaemon = "daemon: exec to the last Service answering"
	changeLag  = "daemon: one-endpoint change, API server to commit, p50"
)

// measureDaemon notes what a real kube-nft takes.
func (o *options) measureDaemon(results *sheet, at size) (err error) {
	if o.binary == "" {
		return nil
	}
	l, err := newLive(o.binary, at)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := l.close(); err == nil {
			err = closeErr
		}
	}()
	if o.start {
		return l.measureCold(results, o.runs)
	}
	for _, step := range []func(*sheet) error{
		func(s *sheet) error { return l.measureCold(s, o.runs) },
		l.measureSingle, l.measureRolling,
		func(s *sheet) error { return l.measureChurn(s, 100, o.churn) },
		func(s *sheet) error { return l.measureChurn(s, 1000, o.churn) },
		l.measureRestart,
	} {
		if err := step(results); err != nil {
			return l.daemon.Failure(err)
		}
	}
	return nil
}

// settling is the pause before memory is looked at: what a start leaves is given back after it.
const settling = 3 * time.Second

// measureCold notes the least of several starts: in the first one, the API server encodes all
// objects for the first time, on the same processors.
func (l *live) measureCold(sheet *sheet, runs int) error {
	var walls, cpus []time.Duration
	for len(walls) < runs {
		took, err := l.startUnobserved()
		if err != nil {
			return err
		}
		cpu, err := l.daemon.cpu()
		if err != nil {
			return err
		}
		walls, cpus = append(walls, took), append(cpus, cpu)
	}
	sheet.duration(l.at, coldDaemon, least(walls))
	sheet.duration(l.at, "daemon: CPU time until then", least(cpus))
	time.Sleep(settling)
	return l.recordMemory(sheet, "after the start")
}

func (l *live) recordMemory(sheet *sheet, when string) error {
	for _, field := range []struct{ proc, name string }{{"VmRSS", "RSS"}, {"VmHWM", "highest RSS"}} {
		size, err := l.daemon.memory(field.proc)
		if err != nil {
			return err
		}
		sheet.set(l.at, fmt.Sprintf("daemon: %s %s", field.name, when), octets, size)
	}
	return nil
}

// measureSingle makes changes one by one, each after the one before is in the kernel.
func (l *live) measureSingle(sheet *sheet) error {
	l.observer.take()
	changes, err := l.repeat(func(i int) netip.Addr { return l.replace(i % l.at.services) })
	if err != nil {
		return err
	}
	adds, err := l.repeat(l.add)
	if err != nil {
		return err
	}
	sheet.duration(l.at, changeLag, quantile(changes, 0.5))
	sheet.duration(l.at, "daemon: one-endpoint change, p99", quantile(changes, 0.99))
	sheet.duration(l.at, "daemon: one-Service add, API server to commit, p50", quantile(adds, 0.5))
	return nil
}

// calm is the pause between two changes of which neither is to wait for the other: longer
// than the least time between two commits.
const calm = 20 * time.Millisecond

func (l *live) repeat(change func(int) netip.Addr) ([]time.Duration, error) {
	var lags []time.Duration
	for i := range rounds {
		time.Sleep(calm)
		lag, err := l.observer.await(change(i))
		if err != nil {
			return nil, err
		}
		lags = append(lags, lag)
	}
	return lags, nil
}

// rollingRate is how many changes a second the rolling restart makes: a pod comes, a pod
// goes.
const rollingRate = 200

func (l *live) measureRolling(sheet *sheet) error {
	r := newRollout(&l.fresh)
	l.observer.expect(r.parts[0][0])
	for i := range r.parts {
		l.server.Apply(r.slice(i))
	}
	l.server.Apply(newService(rollingName, rollingIP))
	if _, err := l.observer.await(r.parts[0][0]); err != nil {
		return err
	}
	run, err := l.run(2*rollingEndpoints, rollingRate, func(n int) netip.Addr {
		if n%2 == 1 {
			l.server.Apply(r.leave(n / 2))
			return netip.Addr{}
		}
		addr, slice := r.come(n / 2)
		l.observer.expect(addr)
		l.server.Apply(slice)
		return addr
	})
	if err != nil {
		return err
	}
	run.note(sheet, l.at, fmt.Sprintf("rolling restart of %d endpoints at %d changes/s", rollingEndpoints, rollingRate))
	return nil
}

// measureChurn keeps up a rate of changes, each of another Service.
func (l *live) measureChurn(sheet *sheet, rate int, d time.Duration) error {
	n := int(d.Seconds() * float64(rate))
	run, err := l.run(n, rate, func(n int) netip.Addr { return l.replace(n % l.at.services) })
	if err != nil {
		return err
	}
	run.note(sheet, l.at, fmt.Sprintf("churn of %d changes/s for %s", rate, d))
	return l.recordMemory(sheet, fmt.Sprintf("after churn of %d changes/s", rate))
}

// A run is what a series of changes took.
type run struct {
	observation
	cpu time.Duration
}

func (r *run) note(sheet *sheet, at size, name string) {
	sheet.duration(at, name+": lag p50", quantile(r.lags, 0.5))
	sheet.duration(at, name+": lag p99", quantile(r.lags, 0.99))
	sheet.duration(at, name+": CPU time of the daemon", r.cpu)
	sheet.set(at, name+": commits", count, float64(r.commits))
	sheet.set(at, name+": changes overtaken by the next", count, float64(r.missing))
}

// run makes n changes at a rate and waits for the last one to be seen. A change that
// returns no address is not waited for.
func (l *live) run(n, rate int, change func(n int) netip.Addr) (*run, error) {
	l.observer.take()
	before, err := l.daemon.cpu()
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	var last netip.Addr
	for i, begin := 0, time.Now(); i < n; {
		due := min(n, 1+int(time.Since(begin).Seconds()*float64(rate)))
		for ; i < due; i++ {
			if addr := change(i); addr.IsValid() {
				last = addr
			}
		}
		<-ticker.C
	}
	if _, err := l.observer.await(last); err != nil {
		return nil, err
	}
	after, err := l.daemon.cpu()
	if err != nil {
		return nil, err
	}
	r := &run{observation: l.observer.take(), cpu: after - before}
	if r.lost {
		return nil, fmt.Errorf("the observer was too slow for the kernel's notifications")
	}
	return r, nil
}

// measureRestart ends the daemon, changes one endpoint and starts it again.
func (l *live) measureRestart(sheet *sheet) error {
	if err := l.daemon.stop(); err != nil {
		return err
	}
	l.observer.take()
	addr := l.replace(0)
	begin := time.Now()
	var err error
	if l.daemon, err = l.startDaemon(); err != nil {
		return err
	}
	if _, err := l.observer.await(addr); err != nil {
		return err
	}
	sheet.duration(l.at, "daemon: restart with one change, exec to commit", time.Since(begin))
	return nil
}
