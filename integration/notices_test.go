package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// A notice is what the kernel tells everybody about one object that a commit touched. There
// is one for each netlink message of the batch, and for each element.
type notice struct {
	kind   uint16 // NFT_MSG_NEWTABLE and so on
	family nft.Family
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

// String returns what was done to which object: "add element ip endpoints". A rule is named
// after its chain.
func (n notice) String() string {
	const objectName = 2 // NFTA_RULE_CHAIN, NFTA_SET_NAME, NFTA_SET_ELEM_LIST_SET
	name := n.attribute(objectName)
	if n.kind == unix.NFT_MSG_NEWCHAIN || n.kind == unix.NFT_MSG_DELCHAIN {
		name = n.attribute(unix.NFTA_CHAIN_NAME)
	}
	return fmt.Sprintf("%s %s %s", kinds[n.kind], n.family.NFT(), name)
}

// attribute returns the text of an attribute; a missing one is empty.
func (n notice) attribute(typ uint16) string {
	attributes, err := netlink.NewAttributeDecoder(n.data)
	if err != nil {
		return ""
	}
	for attributes.Next() {
		if attributes.Type() == typ {
			return attributes.String()
		}
	}
	return ""
}

// ours reports whether the notice is about one of our tables.
func (n notice) ours() bool {
	const tableName = 1 // of all kinds: NFTA_TABLE_NAME, NFTA_CHAIN_TABLE and so on
	return n.attribute(tableName) == nft.TableName
}

// A listener to notices hears what is committed to nf_tables in a namespace.
type noticeListener struct{ conn *netlink.Conn }

// listenToNotices listens in the namespace of the calling test.
func listenToNotices(t testing.TB) *noticeListener {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	})
	if err != nil {
		t.Fatalf("receive buffer for notices: %v", err)
	}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		t.Fatal(err)
	}
	return &noticeListener{conn: conn}
}

// next returns the notices about our tables up to the end of a commit that has one for
// which enough is true. The test fails if none comes within syncTimeout.
func (l *noticeListener) next(t testing.TB, enough func(notice) bool) []notice {
	t.Helper()
	if err := l.conn.SetReadDeadline(time.Now().Add(syncTimeout)); err != nil {
		t.Fatal(err)
	}
	var notices []notice
	for found := false; ; {
		messages, err := l.conn.Receive()
		if err != nil {
			t.Fatalf("%v; heard of %v", err, notices)
		}
		for _, m := range messages {
			kind := uint16(m.Header.Type) & 0xff
			n := notice{kind: kind, family: nft.Family(m.Data[0]), data: m.Data[nfgenmsgLen:]}
			switch {
			case kind == unix.NFT_MSG_NEWGEN && found:
				return notices
			case kind != unix.NFT_MSG_NEWGEN && n.ours():
				notices, found = append(notices, n), found || enough(n)
			}
		}
	}
}

// told reports whether a notice that enough is true for has come, without waiting for it.
func (l *noticeListener) told(t testing.TB, enough func(notice) bool) bool {
	t.Helper()
	found := false
	buf := make([]byte, 64<<10)
	l.receive(t, buf, func(n int) {
		for data := buf[:n]; len(data) >= unix.NLMSG_HDRLEN; {
			length := int(binary.NativeEndian.Uint32(data))
			found = found || enough(notice{data: data[unix.NLMSG_HDRLEN+nfgenmsgLen : length]})
			data = data[min(len(data), (length+3)&^3):]
		}
	})
	return found
}

// drain forgets what has been told so far.
func (l *noticeListener) drain(t testing.TB) {
	t.Helper()
	l.receive(t, make([]byte, 1), func(int) {}) // a datagram is cut to it
}

// receive reads every datagram that is there and calls each with its length.
func (l *noticeListener) receive(t testing.TB, buf []byte, each func(n int)) {
	t.Helper()
	raw, err := l.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	controlErr := raw.Control(func(fd uintptr) {
		for err == nil {
			var n int
			if n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); err == nil {
				each(n)
			}
		}
	})
	if controlErr != nil {
		t.Fatal(controlErr)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
}

// anyNotice is for a commit of which nothing particular is expected.
func anyNotice(notice) bool { return true }

// about returns a test for notices that contain a text, such as an element's comment.
func about(text string) func(notice) bool {
	return func(n notice) bool { return bytes.Contains(n.data, []byte(text)) }
}

// summary counts notices by what they say.
func summary(notices []notice) map[string]int {
	counts := map[string]int{}
	for _, n := range notices {
		counts[n.String()]++
	}
	return counts
}
