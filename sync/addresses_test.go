package sync

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/integration/lab"
)

func TestAddressesAreSetWhenTheyChange(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var calls [][]netip.Addr
	set := onChange(func(addrs []netip.Addr) { calls = append(calls, addrs) })
	for _, addrs := range [][]netip.Addr{nil, {}, {a}, {a}, {a, b}, {a, b}, {b}, nil} {
		set(addrs)
	}
	if want := [][]netip.Addr{nil, {a}, {a, b}, {b}, nil}; !slices.EqualFunc(calls, want, slices.Equal) {
		t.Errorf("set to %v, want %v", calls, want)
	}
}

// TestEndOfSubscriptionWithFullChannel ends a subscription whose sender waits for room.
func TestEndOfSubscriptionWithFullChannel(t *testing.T) {
	updates, stop := make(chan netlink.AddrUpdate, 1), make(chan struct{})
	go func() {
		defer close(updates)
		<-stop
		for range 10 {
			updates <- netlink.AddrUpdate{}
		}
	}()
	end(updates, stop)
	if _, open := <-updates; open {
		t.Error("an update is left")
	}
}

// TestFollowAddressesInKernel adds addresses while they are followed, and ends.
func TestFollowAddressesInKernel(t *testing.T) {
	lab.New(t)
	lab.Run(t, "", "ip", "link", "set", "lo", "up")
	want := netip.MustParseAddr("192.0.2.200")
	ctx, stop := context.WithCancel(t.Context())
	seen := func(addrs []netip.Addr) {
		if slices.Contains(addrs, want) {
			stop()
			return
		}
		next := fmt.Sprintf("192.0.2.%d/32", 190+len(addrs))
		lab.Run(t, "", "ip", "addr", "add", next, "dev", "lo")
		if len(addrs) >= 5 {
			lab.Run(t, "", "ip", "addr", "add", want.String()+"/32", "dev", "lo")
		}
	}
	if err := FollowAddresses(ctx, seen, zap.NewNop()); err != nil {
		t.Error(err)
	}
}
