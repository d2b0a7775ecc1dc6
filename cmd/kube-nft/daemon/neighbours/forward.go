package neighbours

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft/firewall"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// How often Forward looks for rules that refuse connections to endpoints: after a commit of any program to
// nf_tables, but at most once in forwardInterval. Legacy iptables does not notify, so it also looks once in
// forwardAudit. After a look it pauses for forwardRest times as long as the look took.
const (
	forwardInterval = 10 * time.Second
	forwardAudit    = time.Minute
	forwardRest     = 50
)

// maxSample is how many Service ports the sample of endpoints has.
const maxSample = 64

// A Sample has some of the Service ports that are served, to know some endpoints. Methods may be called from any
// goroutine.
type Sample struct {
	mu    sync.Mutex
	ports map[tracker.PortID]*tracker.ServicePort
}

// Follow applies the changes of a commit.
func (s *Sample) Follow(delta *tracker.Delta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ports == nil {
		s.ports = make(map[tracker.PortID]*tracker.ServicePort)
	}
	for id := range delta.Removed {
		delete(s.ports, id)
	}
	for _, p := range delta.Changed {
		if _, known := s.ports[p.ID]; known || len(s.ports) < maxSample && len(p.Cluster)+len(p.Local) > 0 {
			s.ports[p.ID] = p
		}
	}
}

// targets are the endpoints of the sample.
func (s *Sample) targets() (list []firewall.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.ports {
		list = append(list, firewall.TargetsOf(p)...)
	}
	return list
}

// Forward notices when this node does not forward connections to endpoints, because of the rules of another program or
// a kernel parameter. It looks until ctx ends, and calls count with the number of such rules. mark is the bit of
// packets to masquerade.
func (w *Watch) Forward(ctx context.Context, sample *Sample, mark uint32, count func(refusals int)) error {
	client, err := kernel.Open()
	if err != nil {
		return err
	}
	defer client.Close()
	var known []string
	var failing quota.Once
	var generation uint32
	var last time.Time
	for rest := time.Duration(0); retry.Pause(ctx, rest); {
		began := time.Now()
		rest = forwardInterval
		now, err := client.Generation(ctx)
		targets := sample.targets()
		if w.Pauses() || len(targets) == 0 || err == nil && now == generation && began.Sub(last) < forwardAudit {
			continue
		}
		generation, last = now, began
		found, err := firewall.Look(ctx, client, targets, mark)
		rest = max(rest, forwardRest*time.Since(began))
		if ctx.Err() != nil {
			return nil
		}
		if failing.Fails(err) {
			w.Log.Warn("cannot check whether rules of other programs refuse connections to endpoints", zap.Error(err))
		}
		found = slices.DeleteFunc(found, func(f firewall.Finding) bool { return f.Unless != "" })
		count(len(found))
		var places []string
		for _, f := range found {
			if places = append(places, f.Where); !slices.Contains(known, f.Where) {
				text := "a firewall or kernel parameter refuses connections to endpoints on this node: " + f.String()
				w.Log.Warn(text, zap.String("remedy", f.Remedy))
				w.Warn("ForwardRefused", text+". Do: "+f.Remedy)
			}
		}
		if gone := slices.DeleteFunc(known, func(p string) bool { return slices.Contains(places, p) }); len(gone) > 0 {
			w.Log.Info("a firewall or kernel parameter no longer refuses connections to endpoints",
				zap.String("by", strings.Join(gone, ", ")))
		}
		known = places
	}
	return nil
}
