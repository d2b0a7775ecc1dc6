package lab

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A Notice is the kernel's notification about one object that a commit to nf_tables touched. There
// is one for each netlink message of the batch, and for each element. The notice of the kind
// NFT_MSG_NEWGEN ends the commit.
type Notice struct {
	Kind   uint16 // NFT_MSG_NEWTABLE and so on
	family byte
	data   []byte // attributes
}

// kinds are the notices by their words; commits of the ruleset make no others.
var kinds = map[uint16]string{
	unix.NFT_MSG_NEWTABLE:   "add table",
	unix.NFT_MSG_DELTABLE:   "delete table",
	unix.NFT_MSG_NEWCHAIN:   "add chain",
	unix.NFT_MSG_DELCHAIN:   "delete chain",
	unix.NFT_MSG_NEWRULE:    "add rule",
	unix.NFT_MSG_DELRULE:    "delete rule",
	unix.NFT_MSG_NEWSET:     "add set",
	unix.NFT_MSG_DELSET:     "delete set",
	unix.NFT_MSG_NEWSETELEM: "add element",
	unix.NFT_MSG_DELSETELEM: "delete element",
}

// String returns what was done to which object: "add element ip endpoints-tcp". A rule is named
// after its chain.
func (n Notice) String() string {
	const objectName = 2 // NFTA_RULE_CHAIN, NFTA_SET_NAME, NFTA_SET_ELEM_LIST_SET
	name := n.Attribute(objectName)
	if n.Kind == unix.NFT_MSG_NEWCHAIN || n.Kind == unix.NFT_MSG_DELCHAIN {
		name = n.Attribute(unix.NFTA_CHAIN_NAME)
	}
	family := map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}[n.family]
	return fmt.Sprintf("%s %s %s", kinds[n.Kind], family, name)
}

// Attribute returns the text of an attribute; a missing one is empty.
func (n Notice) Attribute(typ uint16) (text string) {
	each(n.data, func(d *netlink.AttributeDecoder) {
		if d.Type() == typ && text == "" {
			text = d.String()
		}
	})
	return text
}

// Holds reports whether the notice has these bytes anywhere. That is many times faster than to decode it.
func (n Notice) Holds(b []byte) bool { return bytes.Contains(n.data, b) }

// Values returns what the elements of a map lead to.
func (n Notice) Values() [][]byte { return n.ofElements(unix.NFTA_SET_ELEM_DATA) }

// Keys returns the keys of elements.
func (n Notice) Keys() [][]byte { return n.ofElements(unix.NFTA_SET_ELEM_KEY) }

func (n Notice) ofElements(part uint16) (values [][]byte) {
	each(n.data, func(d *netlink.AttributeDecoder) {
		if d.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		each(d.Bytes(), func(d *netlink.AttributeDecoder) {
			each(d.Bytes(), func(d *netlink.AttributeDecoder) {
				if d.Type() != part {
					return
				}
				each(d.Bytes(), func(d *netlink.AttributeDecoder) {
					if d.Type() == unix.NFTA_DATA_VALUE {
						values = append(values, d.Bytes())
					}
				})
			})
		})
	})
	return values
}

// each calls f at every attribute.
func each(data []byte, f func(*netlink.AttributeDecoder)) {
	d, err := netlink.NewAttributeDecoder(data)
	for err == nil && d.Next() {
		f(d)
	}
}

// Notices listen to what is committed to nf_tables in a namespace.
type Notices struct{ conn *netlink.Conn }

// noticeBuffer holds unread notifications: several million elements, or a million rules.
const noticeBuffer = 512 << 20

// Listen listens in the namespace of the calling thread.
func Listen() (*Notices, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, wrap(err, "listen to nf_tables")
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		controlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, noticeBuffer)
		})
		err = errors.Join(err, controlErr)
	}
	if err == nil {
		err = conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		return nil, errors.Join(wrap(err, "listen to nf_tables"), conn.Close())
	}
	return &Notices{conn: conn}, nil
}

// ListenToNotices listens in the namespace of the calling test, until its end.
func ListenToNotices(t testing.TB) *Notices {
	t.Helper()
	return Open(t, Listen)
}

// Close ends the listening, and a Receive under way.
func (l *Notices) Close() error { return l.conn.Close() }

// Receive waits for notices and returns them; the error is ENOBUFS if some were lost.
func (l *Notices) Receive() ([]Notice, error) {
	messages, err := l.conn.Receive()
	notices := make([]Notice, 0, len(messages))
	for _, m := range messages {
		notices = append(notices, newNotice(uint16(m.Header.Type), m.Data))
	}
	return notices, err
}

// newNotice reads a message of nf_tables, which begins with a struct nfgenmsg of 4 bytes.
func newNotice(typ uint16, data []byte) Notice {
	return Notice{Kind: typ & 0xff, family: data[0], data: data[4:]}
}

// Next returns the notices about kube-nft's tables up to the end of the first commit with a notice
// for which enough is true. The test fails if none comes.
func (l *Notices) Next(t testing.TB, enough func(Notice) bool) []Notice {
	t.Helper()
	if err := l.conn.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		t.Fatal(err)
	}
	var heard []Notice
	for found := false; ; {
		notices, err := l.Receive()
		if err != nil {
			t.Fatalf("%v; heard of %v", err, heard)
		}
		for _, n := range notices {
			const tableName = 1 // of all kinds: NFTA_TABLE_NAME, NFTA_CHAIN_TABLE and so on
			switch {
			case n.Kind == unix.NFT_MSG_NEWGEN && found:
				return heard
			case n.Kind != unix.NFT_MSG_NEWGEN && n.Attribute(tableName) == "kube-nft":
				heard, found = append(heard, n), found || enough(n)
			}
		}
	}
}

// Told reports whether a notice that enough is true for has come, without waiting for it.
func (l *Notices) Told(t testing.TB, enough func(Notice) bool) (found bool) {
	t.Helper()
	l.drain(t, func(n Notice) { found = found || enough(n) })
	return found
}

// Drain forgets the notices so far.
func (l *Notices) Drain(t testing.TB) {
	t.Helper()
	l.drain(t, func(Notice) {})
}

// drain calls f with every notice that is there.
func (l *Notices) drain(t testing.TB, f func(Notice)) {
	t.Helper()
	raw, err := l.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64<<10) // the kernel sends no more at a time
	controlErr := raw.Control(func(fd uintptr) {
		for err == nil {
			var n int
			if n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); err != nil {
				return
			}
			var messages []syscall.NetlinkMessage
			messages, err = syscall.ParseNetlinkMessage(buf[:n])
			for _, m := range messages {
				f(newNotice(m.Header.Type, m.Data))
			}
		}
	})
	if !errors.Is(err, unix.EAGAIN) || controlErr != nil {
		t.Fatal(err, controlErr)
	}
}

// Any is for a commit of which the test expects nothing particular.
func Any(Notice) bool { return true }

// About returns a test for notices that contain a text, such as an element's comment.
func About(text string) func(Notice) bool {
	return func(n Notice) bool { return bytes.Contains(n.data, []byte(text)) }
}

// Summary counts notices by what they say.
func Summary(notices []Notice) map[string]int {
	counts := map[string]int{}
	for _, n := range notices {
		counts[n.String()]++
	}
	return counts
}
