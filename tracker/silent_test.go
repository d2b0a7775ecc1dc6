package tracker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestLeaveOut says which endpoints of a list are left out when some do not answer.
func TestLeaveOut(t *testing.T) {
	for _, tt := range []struct {
		name        string
		endpoints   string // of a slice, by commas
		silent      string // by blanks: the last number of addresses
		local       bool
		cluster, on string // that stay
		left        string // with the letters of their lists
	}{
		{name: "one of three", endpoints: "10.0.0.1,10.0.0.2,10.0.0.3", silent: "2", cluster: "1 3", left: "2c"},
		{name: "half at most, the first that were silent", endpoints: "10.0.0.1,10.0.0.2,10.0.0.3", silent: "3 1",
			cluster: "1 2", left: "3c"},
		{name: "one of two", endpoints: "10.0.0.1,10.0.0.2", silent: "2 1", cluster: "1", left: "2c"},
		{name: "never the last", endpoints: "10.0.0.1", silent: "1", cluster: "1"},
		{name: "one that is in no list", endpoints: "10.0.0.1,10.0.0.2,10.0.0.3 notready", silent: "3 1", cluster: "2",
			left: "1c"},
		{name: "the last one of a node stays in its list", endpoints: "10.0.0.1 node=node-a,10.0.0.2,10.0.0.3", silent: "1",
			local: true, cluster: "2 3", on: "1", left: "1c"},
		{name: "in both lists", endpoints: "10.0.0.1 node=node-a,10.0.0.2 node=node-a,10.0.0.3", silent: "2",
			local: true, cluster: "1 3", on: "1", left: "2cl"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Config{})
			edits := []func(*corev1.Service){annotated("eject", "true")}
			if tt.local {
				edits = append(edits, balanced("198.51.100.1"), externalLocal)
			}
			tr.SetService(newService(edits...))
			tr.SetSlice(newSlice("web-1", newEndpoints(strings.Split(tt.endpoints, ",")...)...))
			tr.Take()
			id := PortID{"shop", "web", "http", TCP, IPv4}
			var silent []netip.AddrPort
			for number := range strings.FieldsSeq(tt.silent) {
				silent = append(silent, netip.MustParseAddrPort("10.0.0."+number+":8080"))
			}
			tr.LeaveOut(id, silent)
			d := tr.Take()
			p := byPort(d.Changed)[id]
			if p == nil {
				if tt.left != "" {
					t.Fatal("nothing has changed")
				}
				return
			}
			numbers := func(list []netip.AddrPort) string {
				var all []string
				for _, ep := range p.Endpoints(list) {
					all = append(all, strings.TrimSuffix(strings.TrimPrefix(ep.String(), "10.0.0."), ":8080"))
				}
				return strings.Join(all, " ")
			}
			var left []string
			for _, l := range p.Silent() {
				text := numbers([]netip.AddrPort{l.Endpoint})
				if l.Cluster {
					text += "c"
				}
				if l.Local {
					text += "l"
				}
				left = append(left, text)
			}
			if got := numbers(p.Cluster); got != tt.cluster {
				t.Errorf("cluster %s, want %s", got, tt.cluster)
			}
			if got := numbers(p.Local); got != tt.on {
				t.Errorf("local %s, want %s", got, tt.on)
			}
			if got := strings.Join(left, " "); got != tt.left {
				t.Errorf("left out %s, want %s", got, tt.left)
			}
			if !p.HasEndpoints || len(p.Serving) < len(p.Cluster)+len(p.LeftOut) {
				t.Errorf("serving %v: existing connections would end", p.Serving)
			}
		})
	}
}

// TestKubernetesEndsSilence: an endpoint whose conditions change, or that comes back, is trusted again; other changes
// of its slice do not matter.
func TestKubernetesEndsSilence(t *testing.T) {
	for _, tt := range []struct {
		change func(tr *Tracker)
		stays  bool
	}{
		{func(tr *Tracker) {
			tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")...))
		}, true},
		{func(tr *Tracker) {
			tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1 nodes=node-b", "10.0.0.2", "10.0.0.3")...))
		}, true},
		{func(tr *Tracker) {
			tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1 notready", "10.0.0.2", "10.0.0.3")...))
		}, false},
		{func(tr *Tracker) { tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.2", "10.0.0.3")...)) }, false},
		{func(tr *Tracker) { tr.DeleteSlice("shop", "web-1") }, false},
		{func(tr *Tracker) { // 10.0.0.1:8080 leaves and comes back
			slice := newSlice("web-1", newEndpoints("10.0.0.1", "10.0.0.2", "10.0.0.3")...)
			slice.Ports[0].Port = new(int32(9090))
			tr.SetSlice(slice)
			tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1", "10.0.0.2", "10.0.0.3")...))
		}, false},
		{func(tr *Tracker) { tr.SetService(newService()) }, false},
		{func(tr *Tracker) { tr.DeleteService("shop", "web") }, false},
	} {
		tr, id := newTracker(Config{}), PortID{"shop", "web", "http", TCP, IPv4}
		tr.SetService(newService(annotated("eject", "true")))
		tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1", "10.0.0.2", "10.0.0.3")...))
		tr.LeaveOut(id, []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:8080")})
		tr.Take()
		tt.change(tr)
		if stays := len(tr.Silent(id)) > 0; stays != tt.stays {
			t.Errorf("%+v: still silent: %v", tr.entries, stays)
		}
	}
}

// TestLeaveOutOnRequest: a port whose Service does not ask for it keeps its endpoints.
func TestLeaveOutOnRequest(t *testing.T) {
	tr, id := newTracker(Config{}), PortID{"shop", "web", "http", TCP, IPv4}
	silent := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:8080")}
	tr.LeaveOut(id, silent)
	tr.SetService(newService())
	tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1", "10.0.0.2")...))
	tr.LeaveOut(id, silent)
	d := tr.Take()
	if p := byPort(d.Changed)[id]; len(p.Cluster) != 2 || len(p.LeftOut) > 0 {
		t.Errorf("%+v", p)
	}
}

// TestLeaveOutKeepsSharedLists: ports of a Service share the memory of a long list. Few of them may leave it.
func TestLeaveOutKeepsSharedLists(t *testing.T) {
	const ports = 10
	for _, tt := range []struct{ endpoints, apart int }{{100, 10}, {102, 10}, {103, 9}, {mostApart + 1, 0}} {
		tr := newTracker(Config{})
		service, slice := newService(annotated("eject", "true")), newSlice("web-1")
		service.Spec.Ports = nil
		slice.Ports = nil
		for i := range ports {
			name := fmt.Sprint("p", i)
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Protocol: "TCP", Port: int32(80 + i)})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: new(int32(8080 + i))})
		}
		for i := range tt.endpoints {
			slice.Endpoints = append(slice.Endpoints, newEndpoint(fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)))
		}
		tr.SetService(service)
		tr.SetSlice(slice)
		tr.Take()
		for i := range ports {
			id := PortID{"shop", "web", fmt.Sprint("p", i), TCP, IPv4}
			tr.LeaveOut(id, []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("10.1.0.1"), uint16(8080+i))})
		}
		apart := 0
		for d := tr.Take(); ; d = tr.Take() {
			for _, p := range d.Changed {
				apart += min(len(p.LeftOut), 1)
			}
			if d.Due.IsZero() {
				break
			}
		}
		if apart != tt.apart {
			t.Errorf("of %d endpoints: %d ports leave one out, want %d", tt.endpoints, apart, tt.apart)
		}
	}
}

// TestLeaveOutIsReplaced: the latest call counts, and an empty one ends it.
func TestLeaveOutIsReplaced(t *testing.T) {
	tr, id := newTracker(Config{}), PortID{"shop", "web", "http", TCP, IPv4}
	tr.SetService(newService(annotated("eject", "true")))
	tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1", "10.0.0.2")...))
	tr.Take()
	for _, silent := range [][]netip.AddrPort{{netip.MustParseAddrPort("10.0.0.1:8080")},
		{netip.MustParseAddrPort("10.0.0.2:8080")}, nil} {
		tr.LeaveOut(id, silent)
		d := tr.Take()
		p := byPort(d.Changed)[id]
		if p == nil || len(p.LeftOut) != len(silent) || len(p.Cluster) != 2-len(silent) ||
			!slices.Equal(tr.Silent(id), silent) {
			t.Errorf("silent %v: %+v", silent, p)
		}
		tr.LeaveOut(id, silent)
		if d := tr.Take(); !d.Empty() {
			t.Errorf("handed out again: %+v", d)
		}
	}
}
