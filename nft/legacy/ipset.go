package legacy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// Of linux/netfilter/ipset/ip_set.h.
const (
	ipsetProtocol    = 6 // understood by every kernel since 2.6.39
	ipsetCmdDestroy  = 3
	ipsetCmdList     = 7
	ipsetAttrProto   = 1
	ipsetAttrName    = 2
	ipsetAttrFlags   = 6
	ipsetAttrData    = 7
	ipsetListHeader  = 4 // in the flags: sets without their elements
	ipsetAttrCount   = 24
	ipsetAttrRefs    = 25
	ipsetErrBusy     = unix.Errno(4101)
	ipsetSettle      = time.Second // how long nf_tables may take to drop what a commit removed
	ipsetSettlePoll  = 20 * time.Millisecond
	ipsetModule      = "/sys/module/ip_set" // also there if the kernel has it built in
	ipsetPrefix      = "KUBE-"
	ipsetPrefixIPv6  = "KUBE-6-"
	ipsetRemedyInUse = "a rule of another program uses it"
)

// A Set is an ipset, or a set or map of an nf_tables table.
type Set struct {
	Name       string `json:"name"`
	Elements   int    `json:"elements"`
	References int    `json:"references,omitempty"` // rules that use an ipset
}

// isProxySet reports whether the IPVS mode of kube-proxy makes an ipset of that name.
func isProxySet(name string) bool {
	suffix, ok := strings.CutPrefix(name, ipsetPrefixIPv6)
	if !ok {
		suffix, ok = strings.CutPrefix(name, ipsetPrefix)
	}
	if !ok {
		return false
	}
	switch suffix {
	case "LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL",
		"LOAD-BALANCER", "LOAD-BALANCER-FW", "LOAD-BALANCER-LOCAL",
		"LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR",
		"NODE-PORT-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-LOCAL-UDP",
		"NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS":
		return true
	}
	return false
}

// readSets lists kube-proxy's ipsets. Without the kernel's ip_set there are none; asking
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
	e := newEncoder()
	e.Uint8(ipsetAttrProto, ipsetProtocol)
	e.Uint32(ipsetAttrFlags, ipsetListHeader)
	return sets, dump(c, e.message(ipsetType(ipsetCmdList), 0, nft.IP), func(data []byte) error {
		s, err := decodeSet(data)
		if isProxySet(s.Name) {
			sets = append(sets, s)
		}
		return err
	})
}

// ipsetType returns the type of a message of ip_set.
func ipsetType(command uint16) uint16 { return unix.NFNL_SUBSYS_IPSET<<8 | command }

// decodeSet reads a set from the attributes of IPSET_CMD_LIST.
func decodeSet(data []byte) (s Set, err error) {
	err = attributes(data, func(d *netlink.AttributeDecoder) error {
		switch d.Type() {
		case ipsetAttrName:
			s.Name = d.String()
		case ipsetAttrData:
			return attributes(d.Bytes(), s.addHeader)
		}
		return nil
	})
	return s, err
}

// addHeader notes one attribute of the set's description.
func (s *Set) addHeader(d *netlink.AttributeDecoder) error {
	switch d.Type() {
	case ipsetAttrCount:
		s.Elements = int(d.Uint32())
	case ipsetAttrRefs:
		s.References = int(d.Uint32())
	}
	return nil
}

// destroySets destroys kube-proxy's ipsets but for those that rules still use. nf_tables
// drops the references of removed rules a little after the commit.
func destroySets(ctx context.Context) error {
	sets, err := settledSets(ctx)
	if err != nil {
		return fmt.Errorf("list ipsets: %w", err)
	}
	c, err := dialNetfilter()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, s := range sets {
		if s.References == 0 {
			err = errors.Join(err, destroySet(c, s.Name))
		}
	}
	return err
}

// settledSets waits until no set is in use, but no longer than ipsetSettle.
func settledSets(ctx context.Context) (sets []Set, err error) {
	ctx, cancel := context.WithTimeout(ctx, ipsetSettle)
	defer cancel()
	tick := time.NewTicker(ipsetSettlePoll)
	defer tick.Stop()
	for {
		sets, err = readSets()
		if err != nil || !anyUsed(sets) {
			return sets, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return sets, nil
		}
	}
}

// anyUsed reports whether a rule uses one of the sets.
func anyUsed(sets []Set) bool {
	for _, s := range sets {
		if s.References > 0 {
			return true
		}
	}
	return false
}

// destroySet destroys one ipset.
func destroySet(c *netlink.Conn, name string) error {
	e := newEncoder()
	e.Uint8(ipsetAttrProto, ipsetProtocol)
	e.String(ipsetAttrName, name)
	_, err := c.Execute(e.message(ipsetType(ipsetCmdDestroy), netlink.Acknowledge, nft.IP))
	switch {
	case errors.Is(err, ipsetErrBusy):
		return fmt.Errorf("ipset %s: %s", name, ipsetRemedyInUse)
	case err != nil && !errors.Is(err, unix.ENOENT):
		return fmt.Errorf("ipset %s: %w", name, err)
	}
	return nil
}
