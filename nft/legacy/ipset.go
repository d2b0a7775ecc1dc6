package legacy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// Of linux/netfilter/ipset/ip_set.h. vishvananda/netlink lists ipsets, too, but always with all elements: 60,000
// elements take seconds where the headers take milliseconds. It also panics if the kernel interrupts a dump.
const (
	ipsetProtocol   = 6 // understood by every kernel since 2.6.39
	ipsetCmdDestroy = 3
	ipsetCmdList    = 7
	ipsetAttrProto  = 1
	ipsetAttrName   = 2
	ipsetAttrFlags  = 6
	ipsetAttrData   = 7
	ipsetListHeader = 4 // in the flags: sets without their elements
	ipsetAttrADT    = 8 // the elements, each with its data
	ipsetAttrPort   = 4 // in the data of an element
	ipsetAttrCount  = 24
	ipsetAttrRefs   = 25
	ipsetErrBusy    = unix.Errno(4101)
	ipsetRelease    = time.Second // how long nf_tables may take to drop what a commit removed
	ipsetPoll       = 20 * time.Millisecond
	ipsetModule     = "/sys/module/ip_set" // exists also if built into the kernel
)

// A Set is an ipset, or a set or map of an nf_tables table.
type Set struct {
	Name       string `json:"name"`
	Elements   int    `json:"elements"`
	References int    `json:"references,omitempty"` // rules that use an ipset
}

// proxySets matches the ipsets of kube-proxy's IPVS mode. IPv6 names have a 6- behind the prefix.
var proxySets = regexp.MustCompile(`^KUBE-(6-)?(LOOP-BACK|CLUSTER-IP|EXTERNAL-IP|EXTERNAL-IP-LOCAL|` +
	`LOAD-BALANCER|LOAD-BALANCER-FW|LOAD-BALANCER-LOCAL|LOAD-BALANCER-SOURCE-IP|LOAD-BALANCER-SOURCE-CIDR|` +
	`NODE-PORT-TCP|NODE-PORT-UDP|NODE-PORT-LOCAL-TCP|NODE-PORT-LOCAL-UDP|` +
	`NODE-PORT-SCTP-HASH|NODE-PORT-LOCAL-SCTP-HASH|HEALTH-CHECK-NODE-PORT|IPVS-IPS)$`)

// readSets lists kube-proxy's ipsets. Without the kernel's ip_set there are none, and a request
// would load it.
func readSets() (sets []Set, err error) {
	if _, err := os.Stat(ipsetModule); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	err = aboutSet(ipsetCmdList, netlink.Dump, "", func(b []byte) {
		if s := decodeSet(b); proxySets.MatchString(s.Name) {
			sets = append(sets, s)
		}
	})
	return sets, err
}

// aboutSet sends a request about a set, or without a name about all, of which it lists no elements.
func aboutSet(command netlink.HeaderType, flags netlink.HeaderFlags, name string, each func([]byte)) error {
	c, err := dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer c.Close()
	var w attr.Writer
	w.Netfilter(nft.IP, 0)
	w.Uint8(ipsetAttrProto, ipsetProtocol)
	if name == "" {
		w.Uint32(ipsetAttrFlags, ipsetListHeader)
	} else {
		w.Name(ipsetAttrName, name)
	}
	return execute(c, unix.NFNL_SUBSYS_IPSET<<8|command, flags, w.Buf, each)
}

// nodePortSets matches the ipsets that hold node ports, with their protocol.
var nodePortSets = regexp.MustCompile(`^KUBE-(6-)?NODE-PORT-(TCP|UDP|SCTP)(-HASH)?$`)

// readNodePorts lists the node ports in ipsets of these names. The sets of node ports with external
// policy Local are parts of these.
func readNodePorts(sets []Set) (found map[tracker.Frontend]bool, err error) {
	found = make(map[tracker.Frontend]bool)
	for _, set := range sets {
		m := nodePortSets.FindStringSubmatch(set.Name)
		if m == nil {
			continue
		}
		family, protocol := tracker.IPv4, protocolNumbers[strings.ToLower(m[2])]
		if m[1] != "" {
			family = tracker.IPv6
		}
		err = errors.Join(err, aboutSet(ipsetCmdList, netlink.Dump, set.Name, func(b []byte) {
			for elements := attr.NewReader(attr.Find(b, ipsetAttrADT)); elements.Next(); {
				if value := attr.Find(elements.Value, ipsetAttrPort); len(value) == 2 {
					found[tracker.NodePort(family, protocol, binary.BigEndian.Uint16(value))] = true
				}
			}
		}))
	}
	return found, err
}

// decodeSet reads a set from the attributes of IPSET_CMD_LIST.
func decodeSet(b []byte) Set {
	header := attr.Find(b, ipsetAttrData)
	return Set{attr.Name(attr.Find(b, ipsetAttrName)), int(attr.Uint32(attr.Find(header, ipsetAttrCount))),
		int(attr.Uint32(attr.Find(header, ipsetAttrRefs)))}
}

// destroySets destroys kube-proxy's ipsets, except those that rules still use. It waits, because
// nf_tables drops the references of removed rules a little after the commit.
func destroySets(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, ipsetRelease)
	defer cancel()
	used := func(s Set) bool { return s.References > 0 }
	sets, err := readSets()
	for err == nil && waiting.Err() == nil && slices.ContainsFunc(sets, used) {
		retry.Pause(waiting, ipsetPoll)
		sets, err = readSets()
	}
	if err != nil {
		return fmt.Errorf("list ipsets: %w", err)
	}
	for _, s := range slices.DeleteFunc(sets, used) {
		switch refused := aboutSet(ipsetCmdDestroy, netlink.Acknowledge, s.Name, nil); {
		case errors.Is(refused, ipsetErrBusy):
			err = errors.Join(err, fmt.Errorf("ipset %s: a rule of another program uses it", s.Name))
		case refused != nil && !errors.Is(refused, unix.ENOENT):
			err = errors.Join(err, fmt.Errorf("ipset %s: %w", s.Name, refused))
		}
	}
	return err
}
