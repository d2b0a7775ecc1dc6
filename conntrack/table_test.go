package conntrack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

var filterCases = []struct {
	name   string
	filter Filter
}{
	{"everything", Filter{}},
	{"family", Filter{Family: tracker.IPv6}},
	{"protocol", Filter{Family: tracker.IPv4, Protocol: tracker.UDP}},
	{"protocol of both families", Filter{Protocol: tracker.UDP}},
	{"unanswered", Filter{Family: tracker.IPv4, Lacks: SeenReply | DestinationNAT}},
	{"translated SCTP", Filter{Family: tracker.IPv4, Protocol: tracker.SCTP, Has: DestinationNAT}},
	{"translated IPv6", Filter{Family: tracker.IPv6, Protocol: tracker.TCP, Has: DestinationNAT}},
	{"translated TCP", Filter{Family: tracker.IPv4, Protocol: tracker.TCP, Has: DestinationNAT}},
	{"silent TCP", Filter{Family: tracker.IPv4, Protocol: tracker.TCP, Has: DestinationNAT, Lacks: SeenReply}},
	{"answered TCP", Filter{Family: tracker.IPv4, Protocol: tracker.TCP, Has: DestinationNAT | SeenReply}},
	{"unanswered IPv6", Filter{Family: tracker.IPv6, Lacks: SeenReply | DestinationNAT}},
}

// TestFilterInKernel holds what the kernel returns against Filter.Matches, with and
// without the kernel's help, and says how much it filtered.
func TestFilterInKernel(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	create(t, table, mixed()...)
	for _, tt := range filterCases {
		t.Run(tt.name, func(t *testing.T) {
			want := sources(slices.DeleteFunc(mixed(), func(f Flow) bool { return !tt.filter.Matches(&f) }))
			for _, table.unfiltered = range []bool{false, true} {
				flows, err := table.Flows(t.Context(), tt.filter, nil)
				if got := sources(flows); err != nil || !slices.Equal(got, want) {
					t.Errorf("unfiltered %t: got %v, %v, want %v", table.unfiltered, got, err, want)
				}
			}
		})
	}
}

func sources(flows []Flow) []string {
	var list []string
	for i := range flows {
		list = append(list, flows[i].Original.String())
	}
	slices.Sort(list)
	return list
}

// TestFlowInKernel checks that what was created is what is read.
func TestFlowInKernel(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	want := flow(tracker.TCP, "192.0.2.1:1000", "10.96.0.10:53", "10.244.0.5:5353", established)
	want.Zone = 7
	create(t, table, want)
	flows, err := table.Flows(t.Context(), Filter{}, nil)
	if err != nil || len(flows) != 1 {
		t.Fatalf("got %v, %v, want one flow", flows, err)
	}
	got := flows[0]
	if got.ID == 0 || got.Status&want.Status != want.Status {
		t.Errorf("got ID %d, status %#x, want both set", got.ID, got.Status)
	}
	got.ID, got.Status = 0, want.Status
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestDelete(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	var flows []Flow
	for i := range 3 * deleteBatch {
		f := flow(tracker.UDP, fmt.Sprintf("192.0.2.1:%d", 1000+i), "10.96.0.10:53", "10.244.0.5:53", 0)
		f.Zone = uint16(i % 3)
		flows = append(flows, f)
	}
	create(t, table, flows...)
	listed, err := table.Flows(t.Context(), Filter{}, nil)
	if err != nil || len(listed) != len(flows) {
		t.Fatalf("got %d flows, %v, want %d", len(listed), err, len(flows))
	}

	replaced := listed[5]
	replaced.ID++ // as if the entry were another one by now
	if n, err := table.Delete(t.Context(), []Flow{replaced}, nil); n != 0 || err != nil {
		t.Errorf("newer flow: deleted %d, %v, want 0", n, err)
	}
	if n, err := table.Delete(t.Context(), listed[:200], nil); n != 200 || err != nil {
		t.Errorf("deleted %d, %v, want 200", n, err)
	}
	if n, err := table.Delete(t.Context(), listed, nil); n != len(flows)-200 || err != nil {
		t.Errorf("second time: deleted %d, %v, want %d", n, err, len(flows)-200)
	}
	if n, err := table.Delete(t.Context(), nil, nil); n != 0 || err != nil {
		t.Errorf("nothing: deleted %d, %v", n, err)
	}
}

// TestDeleteOverrun makes the kernel drop answers: every deletion fails, and the receive
// buffer takes but a few failures.
func TestDeleteOverrun(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	if err := table.conn.SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
	flows := slices.Repeat(mixed(), 10)
	if _, err := table.deleteBatch(flows); !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("got %v, want ENOBUFS", err)
	}
	create(t, openTable(t), mixed()...)
	if err := table.conn.SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
	listed, err := table.Flows(t.Context(), Filter{}, nil)
	if err != nil || len(listed) != len(mixed()) {
		t.Fatalf("after the overrun: got %d flows, %v, want %d", len(listed), err, len(mixed()))
	}
	if err := table.conn.SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Delete(t.Context(), slices.Repeat(listed, 10), nil); err != nil {
		t.Error(err)
	}
	if left, err := table.Flows(t.Context(), Filter{}, nil); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v, want none", left, err)
	}
}

// TestRefusedFilter asks for a family that the kernel cannot filter tuples of.
func TestRefusedFilter(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	flows, err := table.Flows(t.Context(), Filter{Family: 7, Protocol: tracker.UDP}, nil)
	if len(flows) != 0 || err != nil || !table.unfiltered || table.broken {
		t.Errorf("got %v, %v, unfiltered %t, broken %t, want no flows and no filters from now on",
			flows, err, table.unfiltered, table.broken)
	}
}

// TestDumpLeft checks that the socket can be used after a dump that the caller did not read to its
// end, and that a broken one is replaced.
func TestDumpLeft(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	create(t, table, foreign(tracker.UDP, 2000)...)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := table.Flows(ctx, Filter{}, func(*Flow) bool { cancel(); return false })
	want := "read conntrack table: context canceled"
	if err == nil || err.Error() != want || table.broken {
		t.Errorf("got %v, want %s", err, want)
	}
	for _, table.broken = range []bool{false, true} {
		if n := count(t, table); n != 2000 || table.broken {
			t.Errorf("got %d flows, want 2000", n)
		}
	}
	if _, err := table.Delete(ctx, mixed(), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("delete: got %v, want %v", err, context.Canceled)
	}
}

// TestDeleteUnprivileged: the kernel refuses a whole batch with a single answer.
func TestDeleteUnprivileged(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	create(t, table, mixed()...)
	dropCapabilities(t)
	n, err := table.Delete(t.Context(), mixed(), nil)
	want := "delete conntrack entry udp 192.0.2.1:1000 -> 10.96.0.10:53: operation not permitted"
	if n != 0 || err == nil || err.Error() != want {
		t.Errorf("deleted %d, %v, want %s", n, err, want)
	}
}

// dropCapabilities takes all capabilities from this thread, which dies with the test.
func dropCapabilities(t *testing.T) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
}
