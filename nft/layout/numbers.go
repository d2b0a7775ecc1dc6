package layout

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// ListsMap names the map of the shared lists with a number, of a Service port with a protocol. The kernel goes through
// all rules that name a map for each new element, and through all elements for a new rule that names it: so no other
// lists are there. It exists while one of the lists has elements.
func ListsMap(number uint32, protocol tracker.Protocol) string {
	return ListsPrefix + protocol.String() + "-" + strconv.FormatUint(uint64(number), 10)
}

// SlotsMap names the map of a slot table of a shared list.
func SlotsMap(number uint32, local bool, table ListTable, protocol tracker.Protocol) string {
	return SlotsPrefix + protocol.String() + "-" + tableName(number, local, table)
}

// ListsPrefix and SlotsPrefix are how the names of these maps begin.
const (
	ListsPrefix = "lists-"
	SlotsPrefix = "slots-"
)

// A joint list is one that ports of a Service may share: addresses stand in one map, and in another one stands the
// port of the endpoints, by the port that a connection goes to.

// portMaps is over how many maps the ports of joint lists are spread, for the reason that ListsMap has. They are few:
// the kernel looks for a set of a table by going through a list of them, so that a map for each would be too many.
const portMaps = 256

// AddressesMap names the map of the addresses of the joint lists with a number. Each has its own, as ListsMap says.
func AddressesMap(number uint32) string {
	return AddressesPrefix + strconv.FormatUint(uint64(number), 10)
}

// PortsMap names the map of the ports of the joint lists with a number, of Service ports with a protocol.
func PortsMap(number uint32, protocol tracker.Protocol) string {
	return PortsPrefix + protocol.String() + "-" + strconv.Itoa(int(number%portMaps))
}

// AddressesPrefix and PortsPrefix are how the names of these maps begin.
const (
	AddressesPrefix = "addresses-"
	PortsPrefix     = "ports-"
)

// JointPortNumber is the number under which the ports of a joint list stand.
func JointPortNumber(number uint32) uint32 { return ListTableNumber(number, false, 0) }

// JointPortKey is the key of a port that connections go to.
func JointPortKey(number uint32, port uint16) string {
	return nft.NumberedPort(JointPortNumber(number), port)
}

// HoldsLists reports whether a map has the endpoints of shared or joint lists.
func HoldsLists(set string) bool {
	return strings.HasPrefix(set, ListsPrefix) || strings.HasPrefix(set, SlotsPrefix) ||
		strings.HasPrefix(set, AddressesPrefix)
}

// HoldsPorts reports whether a map has the ports of joint lists, and of which protocol they are.
func HoldsPorts(set string) (protocol string, ok bool) {
	name, ok := strings.CutPrefix(set, PortsPrefix)
	protocol, _, _ = strings.Cut(name, "-")
	return protocol, ok
}

// InList returns the number of the shared or joint list that an element belongs to, and which of the two lists it is.
func InList(set, key string) (number uint32, local, ok bool) {
	if ok = len(key) >= 4 && (HoldsLists(set) || strings.HasPrefix(set, PortsPrefix)); ok {
		number, local, _ = ListOfTable(binary.NativeEndian.Uint32([]byte(key)))
	}
	return number, local, ok
}

// ListNumber is the number of one of the two lists under which its elements stand.
func ListNumber(number uint32, local bool) uint32 {
	if local {
		return 2*number + 1
	}
	return 2 * number
}

// OtherList returns the number of the local list for that of the cluster-wide one of a Service port, and the reverse.
func OtherList(n uint32) uint32 { return n ^ 1 }

// IsLocalNumber reports whether a number is that of the local one of two lists.
func IsLocalNumber(number uint32) bool { return number%2 == 1 }

// A ListTable is one of the two slot tables that a shared list can have: a long one is filled while packets still use
// the other one.
type ListTable uint32

// Other returns the other table.
func (t ListTable) Other() ListTable { return 1 - t }

// ListTableNumber is the number under which the elements of a shared list stand in a table.
func ListTableNumber(number uint32, local bool, table ListTable) uint32 {
	return ListNumber(2*number+uint32(table), local)
}

// ListOfTable reads back what ListTableNumber returned.
func ListOfTable(n uint32) (number uint32, local bool, table ListTable) {
	return n / 4, IsLocalNumber(n), ListTable(n / 2 % 2)
}

// ListKey is what the elements of a shared list in a table have in common; the index follows.
func ListKey(number uint32, local bool, table ListTable) string {
	return string(nft.AppendNumber(nil, ListTableNumber(number, local, table)))
}

// How the names of chains of shared lists begin. sharedPrefix stands before the number.
const (
	sharedPrefix = "list-"
	listPrefix   = "pick-" + sharedPrefix
	slotsPrefix  = "pick-" + SlotsPrefix
)

// ListChain names the chain that chooses among the endpoints of a shared list, or goes to the chain of a slot table.
func ListChain(number uint32, local bool) string {
	return listPrefix + LocalInfix(local) + strconv.FormatUint(uint64(number), 10)
}

// SlotsChain names the chain that chooses among the slots of a table of a shared list.
func SlotsChain(number uint32, local bool, table ListTable) string {
	return slotsPrefix + tableName(number, local, table)
}

func tableName(number uint32, local bool, table ListTable) string {
	return LocalInfix(local) + strconv.FormatUint(uint64(number), 10) + "-" + strconv.Itoa(int(table))
}

// ListOfChain reads back of which list ListChain or SlotsChain wrote the name.
func ListOfChain(name string) (number uint32, ok bool) {
	text, ok := strings.CutPrefix(name, listPrefix)
	if !ok {
		text, ok = strings.CutPrefix(name, slotsPrefix)
	}
	text, _, _ = strings.Cut(strings.TrimPrefix(text, LocalInfix(true)), "-")
	n, err := strconv.ParseUint(text, 10, 31)
	return uint32(n), ok && err == nil
}

// LocalInfix stands in names that are about the endpoints of this node.
func LocalInfix(local bool) string {
	if local {
		return "local-"
	}
	return ""
}

// AffinityMaps is over how many maps the namespaces are spread. A rule that looks something up in a map costs
// the kernel a walk over the rules that do so already, and over the map's entries. So a namespace whose
// clients fill a map pays for it, with the few namespaces that share the map.
const AffinityMaps = 64

// AffinityMap names the map that holds the entries under a number. Numbers of one namespace have one map.
func AffinityMap(number uint32) string {
	return AffinityPrefix + strconv.Itoa(int(number/2%AffinityMaps))
}

// UpdatePrefix is how the names of chains begin that update entries; the number follows.
const UpdatePrefix = "update-affinity-"

// UpdateChain names the chain that updates the entries of the Service port whose affinity has a number.
func UpdateChain(number uint32) string {
	return UpdatePrefix + strconv.FormatUint(uint64(number), 10)
}

// FollowChain names the chain that sends the clients with an entry to the endpoint in a list that the entry names.
func FollowChain(number uint32, local bool) string {
	return followPrefix + LocalInfix(local) + strconv.FormatUint(uint64(number), 10)
}

const followPrefix = "follow-affinity-"

// affinityOfChain reads back what UpdateChain and FollowChain wrote.
func affinityOfChain(name string) (number uint32, ok bool) {
	for _, prefix := range []string{UpdatePrefix, followPrefix + LocalInfix(true), followPrefix} {
		if digits, found := strings.CutPrefix(name, prefix); found {
			n, err := strconv.ParseUint(digits, 10, 32)
			return uint32(n), err == nil
		}
	}
	return 0, false
}

// NumberIn is the number of a member or of an affinity entry.
func NumberIn(f nft.Family, set, key string) (number uint32, ok bool) {
	switch {
	case set == MembersSet && len(key) >= 4:
		return binary.NativeEndian.Uint32([]byte(key)), true
	case strings.HasPrefix(set, AffinityPrefix):
		number, _, ok = nft.SplitNumberedKey(f, key)
	}
	return number, ok
}
