package sync

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// addressRetry is the pause before the kernel is asked again for notifications that it
// refused or broke off, and addressAudit how often addresses are listed without one.
const (
	addressRetry = time.Second
	addressAudit = time.Minute
)

// FollowAddresses calls set with the addresses of this namespace's interfaces, at once and
// after each change, until ctx ends.
func FollowAddresses(ctx context.Context, set func([]netip.Addr), log *zap.Logger) error {
	set = onChange(set)
	for ctx.Err() == nil {
		if err := followOnce(ctx, set); err != nil && ctx.Err() == nil {
			log.Warn("cannot follow the addresses of interfaces; retrying", zap.Error(err),
				zap.Duration("retry_in", addressRetry))
			retry.Pause(ctx, addressRetry)
		}
	}
	return nil
}

// onChange passes on what differs from the time before: the kernel notifies of more than
// that, such as lifetimes that are prolonged.
func onChange(set func([]netip.Addr)) func([]netip.Addr) {
	var last []netip.Addr
	known := false
	return func(addrs []netip.Addr) {
		if known && slices.Equal(addrs, last) {
			return
		}
		last, known = addrs, true
		set(addrs)
	}
}

// followOnce follows addresses until the notifications break off: the kernel drops some
// when there are too many, and says so with ENOBUFS.
func followOnce(ctx context.Context, set func([]netip.Addr)) error {
	updates, stop := make(chan netlink.AddrUpdate, 64), make(chan struct{})
	broken := make(chan error, 1)
	err := netlink.AddrSubscribeWithOptions(updates, stop, netlink.AddrSubscribeOptions{
		ErrorCallback: func(err error) {
			select {
			case broken <- err:
			default:
			}
		},
	})
	if err != nil {
		close(stop)
		return fmt.Errorf("subscribe to interface addresses: %w", err)
	}
	defer end(updates, stop)
	audit := time.NewTicker(addressAudit)
	defer audit.Stop()
	for {
		addrs, err := legacy.InterfaceAddresses()
		if err != nil {
			return err
		}
		set(addrs)
		select {
		case <-ctx.Done():
			return nil
		case <-audit.C:
		case _, open := <-updates:
			for open && len(updates) > 0 { // one list answers all that are there already
				_, open = <-updates
			}
			if open {
				continue
			}
			err := error(unix.ENOBUFS)
			select {
			case err = <-broken:
			default:
			}
			return fmt.Errorf("address notifications ended: %w", err)
		}
	}
}

// end ends a subscription and takes what it has left: its sender may be waiting.
func end(updates <-chan netlink.AddrUpdate, stop chan<- struct{}) {
	close(stop)
	for range updates {
		continue
	}
}
