package legacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// Device is the dummy device on which kube-proxy's IPVS mode keeps the addresses of
// Services.
const Device = "kube-ipvs0"

// A Server is a virtual server of IPVS.
type Server struct {
	Protocol string         `json:"protocol"` // tcp, udp or sctp
	Frontend netip.AddrPort `json:"frontend"`
	// Connections counts those that ip_vs translates, with the ones that time out.
	Connections int `json:"connections"`

	open    []netip.AddrPort // the destinations that take new connections
	foreign bool             // it does not translate, or has destinations of another address family
}

// command returns the command that removes the server, which also serves as its name.
func (s Server) command() string {
	flag := map[string]string{"tcp": "-t", "udp": "-u", "sctp": "--sctp-service"}[s.Protocol]
	return fmt.Sprintf("ipvsadm -D %s %s", flag, s.Frontend)
}

// findDevice returns the device and its addresses; nil if there is none. A device of that name is
// kube-proxy's only if it is a dummy.
func findDevice() (netlink.Link, map[netip.Addr]bool, error) {
	link, err := netlink.LinkByName(Device)
	if errors.As(err, &netlink.LinkNotFoundError{}) || err == nil && link.Type() != "dummy" {
		return nil, nil, nil
	}
	var list []netlink.Addr
	if err == nil {
		list, err = addressesOf(link)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("device %s: %w", Device, err)
	}
	addrs := make(map[netip.Addr]bool)
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addrs[addr.Unmap()] = true
		}
	}
	return link, addrs, nil
}

// addressesOf lists the addresses of an interface, or of all. Where they change meanwhile, it lists them again.
func addressesOf(link netlink.Link) (list []netlink.Addr, err error) {
	for range 10 {
		list, err = netlink.AddrList(link, netlink.FAMILY_ALL)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// ServiceAddresses returns the addresses of kube-ipvs0.
func ServiceAddresses() (map[netip.Addr]bool, error) {
	_, addrs, err := findDevice()
	return addrs, err
}

// InterfaceAddresses returns the addresses of the interfaces of this network namespace, sorted. Those of kube-ipvs0,
// where kube-proxy's IPVS mode has the addresses of Services, are not the node's.
func InterfaceAddresses() ([]netip.Addr, error) {
	list, err := addressesOf(nil)
	if err != nil {
		return nil, fmt.Errorf("list interface addresses: %w", err)
	}
	services, err := ServiceAddresses()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, entry := range list {
		if addr, ok := netip.AddrFromSlice(entry.IP); ok && !services[addr.Unmap()] {
			addrs = append(addrs, addr.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

// deleteDevice deletes kube-ipvs0, if it exists, with its addresses.
func deleteDevice() error {
	link, _, err := findDevice()
	if err != nil || link == nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("delete device %s: %w", Device, err)
	}
	return nil
}

// serversFile lists the virtual servers, and exists where ip_vs is loaded. The kernel leaves some out after the first
// 4096 bytes if another network namespace has virtual servers, too (seen on 6.1). So it serves only to find out
// whether there is any: netlink has them all, and needs a privilege that user namespaces cannot give.
const serversFile = "/proc/thread-self/net/ip_vs"

// hasServers reports whether a list in the form of serversFile has virtual servers by address: their lines begin with
// the protocol.
func hasServers(list []byte) bool {
	return bytes.Contains(list, []byte("\nTCP ")) || bytes.Contains(list, []byte("\nUDP ")) ||
		bytes.Contains(list, []byte("\nSCTP "))
}

// readServers lists the virtual servers by address; those by firewall mark have none.
func readServers() ([]Server, error) {
	list, err := os.ReadFile(serversFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !hasServers(list) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, err := dialIPVS()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var servers []Server
	err = c.list(ipvsMessage(ipvsGetServer).Buf, func(data []byte) {
		if s, ok := decodeServer(attr.Find(data, ipvsAttrServer)); ok {
			servers = append(servers, s)
		}
	})
	for i := range servers {
		if err != nil {
			return nil, err
		}
		s := &servers[i]
		err = c.list(aboutServer(ipvsGetDest, s), func(data []byte) { s.addDestination(attr.Find(data, ipvsAttrDest)) })
	}
	return servers, err
}

// readIPVS reads the state of IPVS. kube-proxy's are the virtual servers at the addresses of kube-ipvs0,
// and the node ports among all others, which stand in ipsets.
func readIPVS() (p Part, err error) {
	p.Backend = IPVS
	link, addrs, err := findDevice()
	if err != nil {
		return p, err
	}
	if link != nil {
		p.Device = Device
	}
	all, err := readServers()
	if err != nil {
		return p, fmt.Errorf("virtual servers: %w", err)
	}
	if p.Sets, err = readSets(); err != nil {
		return p, fmt.Errorf("ipsets: %w", err)
	}
	var nodePorts map[tracker.Frontend]bool
	if len(all) > 0 && len(p.Sets) > 0 {
		if nodePorts, err = readNodePorts(p.Sets); err != nil {
			return p, fmt.Errorf("ipsets: %w", err)
		}
	}
	p.addServers(all, addrs, nodePorts)
	return p, nil
}

// addServers tells kube-proxy's virtual servers from those of others, and lists the frontends of those
// that take new connections.
func (p *Part) addServers(all []Server, addrs map[netip.Addr]bool, nodePorts map[tracker.Frontend]bool) {
	seen := make(map[tracker.Frontend]bool)
	for _, server := range all {
		at := tracker.Frontend{Address: server.Frontend.Addr(), Protocol: protocolNumbers[server.Protocol],
			Port: server.Frontend.Port()}
		if atNode := !addrs[at.Address]; atNode {
			nodePort := tracker.NodePort(tracker.FamilyOf(at.Address), at.Protocol, at.Port)
			if server.foreign || !nodePorts[nodePort] {
				p.OtherServers = append(p.OtherServers, server)
				continue
			}
			if len(server.open) > 0 && !slices.Contains(p.NodePortsAt, at.Address) {
				p.NodePortsAt = append(p.NodePortsAt, at.Address)
			}
			at = nodePort
		}
		p.Servers = append(p.Servers, server)
		if len(server.open) > 0 && !seen[at] {
			seen[at] = true
			lists := Lists{Cluster: sortedEndpoints(server.open), OneList: true}
			p.Frontends = append(p.Frontends, Frontend{Frontend: at, Lists: lists})
		}
	}
}

// Connections counts the connections of kube-proxy's virtual servers.
func Connections() (n int, err error) {
	p, err := readIPVS()
	for i := range p.Servers {
		n += p.Servers[i].Connections
	}
	return n, explain(err)
}

// Quiesce lets kube-proxy's virtual servers take no new connections.
func Quiesce(ctx context.Context) error {
	p, err := readIPVS()
	if err == nil {
		err = closeServers(ctx, p.Servers)
	}
	return explain(err)
}

// removeIPVS removes what there is of kube-proxy's IPVS mode. The virtual servers go first: they are
// known by the device and the sets.
func removeIPVS(ctx context.Context) error {
	p, err := readIPVS()
	if err == nil {
		err = deleteServers(ctx, p.Servers)
	}
	if err != nil {
		return err
	}
	return errors.Join(deleteDevice(), destroySets(ctx))
}
