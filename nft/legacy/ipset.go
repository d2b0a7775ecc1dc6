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
	c, err := dialNetfilter()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r := newRequest(ipSets|ipsetCmdList, nft.IP)
	r.Uint8(ipsetAttrProto, ipsetProtocol)
	r.Uint32(ipsetAttrFlags, ipsetListHeader)
	err = r.send(c, netlink.Dump, func(list *attr.Reader) {
		if s := decodeSet(list); proxySets.MatchString(s.Name) {
			sets = append(sets, s)
		}
	})
	return sets, err
}

// nodePortSets matches the ipsets that hold node ports, with their protocol.
var nodePortSets = regexp.MustCompile(`^KUBE-(6-)?NODE-PORT-(TCP|UDP|SCTP)(-HASH)?$`)

// readNodePorts lists the node ports in ipsets of these names. The sets of node ports with external
// policy Local are parts of these.
func readNodePorts(sets []Set) (map[nodePort]bool, error) {
	c, err := dialNetfilter()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	found := make(map[nodePort]bool)
	for _, set := range sets {
		m := nodePortSets.FindStringSubmatch(set.Name)
		if m == nil {
			continue
		}
		port := nodePort{family: tracker.IPv4, protocol: protocolNumbers[strings.ToLower(m[2])]}
		if m[1] != "" {
			port.family = tracker.IPv6
		}
		r := newRequest(ipSets|ipsetCmdList, nft.IP)
		r.Uint8(ipsetAttrProto, ipsetProtocol)
		r.Name(ipsetAttrName, set.Name)
		err = errors.Join(err, r.send(c, netlink.Dump, func(list *attr.Reader) {
			for list.Next() {
				if list.Type != ipsetAttrADT {
					continue
				}
				for elements := list.Nested(); elements.Next(); {
					if value := attr.Find(elements.Value, ipsetAttrPort); len(value) == 2 {
						port.port = binary.BigEndian.Uint16(value)
						found[port] = true
					}
				}
			}
		}))
	}
	return found, err
}

// decodeSet reads a set from the attributes of IPSET_CMD_LIST.
func decodeSet(list *attr.Reader) (s Set) {
	for list.Next() {
		switch list.Type {
		case ipsetAttrName:
			s.Name = list.Name()
		case ipsetAttrData:
			for header := list.Nested(); header.Next(); {
				switch header.Type {
				case ipsetAttrCount:
					s.Elements = int(header.Uint32())
				case ipsetAttrRefs:
					s.References = int(header.Uint32())
				}
			}
		}
	}
	return s
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
	c, err := dialNetfilter()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, s := range slices.DeleteFunc(sets, used) {
		r := newRequest(ipSets|ipsetCmdDestroy, nft.IP)
		r.Uint8(ipsetAttrProto, ipsetProtocol)
		r.Name(ipsetAttrName, s.Name)
		switch refused := r.send(c, netlink.Acknowledge, nil); {
		case errors.Is(refused, ipsetErrBusy):
			err = errors.Join(err, fmt.Errorf("ipset %s: a rule of another program uses it", s.Name))
		case refused != nil && !errors.Is(refused, unix.ENOENT):
			err = errors.Join(err, fmt.Errorf("ipset %s: %w", s.Name, refused))
		}
	}
	return err
}
