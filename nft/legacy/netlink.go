package legacy

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// receiveBuffer is the most that the kernel puts into one message. The kernel begins each message
// of a listing by walking to the end of the last one: fewer messages cost less.
const receiveBuffer = 1 << 15

// Subsystems of netfilter, as the upper byte of a message's type.
const (
	nfTables = unix.NFNL_SUBSYS_NFTABLES << 8
	ipSets   = unix.NFNL_SUBSYS_IPSET << 8
)

// A request is a message to netfilter under construction: its type, flags and attributes.
type request struct {
	typ, flags uint16
	attr.Writer
}

// newRequest begins a message about a family.
func newRequest(typ uint16, f nft.Family) *request {
	r := &request{typ: typ}
	r.Netfilter(f, 0)
	return r
}

// dialNetfilter opens a socket in the network namespace of the calling thread.
func dialNetfilter() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: receiveBuffer})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return c, nil
}

// send sends the request and calls each with the attributes of every message of the answer. It
// returns EINTR if a listing is inconsistent because the kernel's state changed meanwhile.
func (r *request) send(c *netlink.Conn, flags netlink.HeaderFlags, each func(*attr.Reader)) error {
	replies, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(r.typ), Flags: netlink.Request | flags},
		Data:   r.Buf,
	})
	if err != nil || each == nil {
		return err
	}
	for _, m := range replies {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return unix.EINTR
		}
		if len(m.Data) < attr.NetfilterHeader {
			return fmt.Errorf("a message of %d bytes", len(m.Data))
		}
		list := attr.NewReader(m.Data[attr.NetfilterHeader:])
		each(&list)
		if err := list.Err(); err != nil {
			return err
		}
	}
	return nil
}
