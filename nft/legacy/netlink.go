package legacy

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// receiveBuffer is the most that the kernel puts into one message. The kernel begins each message
// of a listing by walking to the end of the last one: fewer messages cost less.
const receiveBuffer = 1 << 15

// dial opens a netlink socket in the network namespace of the calling thread.
func dial(protocol int) (*netlink.Conn, error) {
	c, err := netlink.Dial(protocol, &netlink.Config{MessageBufferSize: receiveBuffer})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return c, nil
}

// headerLen is the length of the header before the attributes, of netfilter and of a generic family: the command, its
// version, and two bytes.
const headerLen = attr.NetfilterHeader

// execute sends a request and calls each with the attributes of every message of the answer. It
// returns EINTR if a listing is inconsistent because the kernel's state changed meanwhile.
func execute(c *netlink.Conn, typ netlink.HeaderType, flags netlink.HeaderFlags, data []byte, each func([]byte)) error {
	replies, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Request | flags}, Data: data,
	})
	if flags == netlink.Acknowledge {
		return err
	}
	for _, m := range replies {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return unix.EINTR
		}
		if len(m.Data) >= headerLen {
			each(m.Data[headerLen:])
		}
	}
	return err
}
