package flows

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestMemoryOfConnections: a Counter that knows as many connections as it can keeps no more memory than docs/limits.md
// says.
func TestMemoryOfConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds, and many with the race detector")
	}
	c := newCounter()
	const namespaces = 64 // one alone gets half of the places
	at := func(i int) tracker.Frontend {
		return tracker.Frontend{Address: lab.After(cluster.Address, 1+i%namespaces), Protocol: tracker.TCP, Port: 80}
	}
	for i := range namespaces {
		c.setOwner(at(i), Service{fmt.Sprint("ns", i), "web"})
	}
	heap := func() int64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before := heap()
	c.ended = make(map[connection]struct{})
	for i := range mostConnections * 5 / 4 {
		c.see(connectionTo(at(i), uint32(i), time.Second, 10, 0), start)
	}
	c.tidy(true, start)
	if known := c.State().Connections; known < mostConnections*9/10 {
		t.Fatalf("%d connections are known", known)
	}
	if kept := heap() - before; kept > 30<<20 {
		t.Errorf("%d bytes", kept)
	}
	runtime.KeepAlive(c)
}
