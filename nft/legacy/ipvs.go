package legacy

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kube-nft/kube-nft/tracker"
)

// Device is the dummy device on which kube-proxy's IPVS mode keeps the addresses of
// Services.
const Device = "kube-ipvs0"

// A Server is a virtual server of IPVS.
type Server struct {
	Protocol string         `json:"protocol"` // tcp, udp or sctp
	Frontend netip.AddrPort `json:"frontend"`
	// Destinations counts the endpoints that take new connections.
	Destinations int `json:"-"`
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
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil, nil
	}
	if err != nil || link.Type() != "dummy" {
		return nil, nil, err
	}
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, err
	}
	addrs := make(map[netip.Addr]bool)
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addrs[addr.Unmap()] = true
		}
	}
	return link, addrs, nil
}

// deleteDevice deletes kube-ipvs0, if it exists, with its addresses.
func deleteDevice() error {
	link, _, err := findDevice()
	if err == nil && link != nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("device %s: %w", Device, err)
	}
	return nil
}

// readServers lists the virtual servers.
func readServers() ([]Server, error) {
	file, err := os.Open("/proc/thread-self/net/ip_vs")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // IPVS is not loaded
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return parseServers(file)
}

// parseServers reads the form of /proc/net/ip_vs: one line per virtual server, such as "TCP
// 0A600001:01BB rr", and its destinations indented below, such as "-> 0AF40001:1F90 Masq 1 0 0" with
// a weight of 1. A weight of 0 takes no new connections. Servers by firewall mark have no address;
// they are left out.
func parseServers(r io.Reader) (servers []Server, err error) {
	lines := bufio.NewScanner(r)
	marked := true // whether the destinations that follow have no server of ours
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 4 && fields[0] == "->" && fields[3] != "0" && !marked {
			servers[len(servers)-1].Destinations++
		}
		if len(fields) < 2 || !slices.Contains([]string{"TCP", "UDP", "SCTP", "FWM"}, fields[0]) {
			continue
		}
		if marked = fields[0] == "FWM"; marked {
			continue
		}
		frontend, err := parseFrontend(fields[1])
		if err != nil {
			return nil, err
		}
		servers = append(servers, Server{Protocol: strings.ToLower(fields[0]), Frontend: frontend})
	}
	return servers, lines.Err()
}

// parseFrontend reads 0A600001:01BB or [fd00:0000:…:0001]:01BB.
func parseFrontend(s string) (frontend netip.AddrPort, err error) {
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 {
		return frontend, fmt.Errorf("virtual server %q: no port", s)
	}
	addr, err := parseHexAddr(strings.Trim(s[:colon], "[]"))
	port, portErr := strconv.ParseUint(s[colon+1:], 16, 16)
	if err = cmp.Or(err, portErr); err != nil {
		return frontend, fmt.Errorf("virtual server %q: %w", s, err)
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}

// parseHexAddr reads 0A600001, or an IPv6 address in its usual form.
func parseHexAddr(s string) (netip.Addr, error) {
	if strings.Contains(s, ":") {
		return netip.ParseAddr(s)
	}
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 4 {
		return netip.Addr{}, errors.New("not an IPv4 address in hexadecimal")
	}
	return netip.AddrFrom4([4]byte(raw)), nil
}

// ipvsFrontends lists the frontends of the IPVS mode: the virtual servers with destinations at the
// addresses of kube-ipvs0, and the node ports among all others, which stand in ipsets. Virtual
// servers at other addresses and ports belong to another program.
func ipvsFrontends(servers []Server, addrs map[netip.Addr]bool,
	nodePorts map[nodePort]bool) (list []Frontend, nodePortsAt []netip.Addr) {
	seen := make(map[tracker.Frontend]bool)
	for _, s := range servers {
		at := tracker.Frontend{Address: s.Frontend.Addr(), Protocol: protocolNumbers[s.Protocol], Port: s.Frontend.Port()}
		if s.Destinations == 0 {
			continue
		}
		if !addrs[at.Address] {
			family := tracker.FamilyOf(at.Address)
			if !nodePorts[nodePort{family, at.Protocol, at.Port}] {
				continue
			}
			if !slices.Contains(nodePortsAt, at.Address) {
				nodePortsAt = append(nodePortsAt, at.Address)
			}
			at = tracker.NodePort(family, at.Protocol, at.Port)
		}
		if !seen[at] {
			seen[at] = true
			list = append(list, Frontend{Frontend: at})
		}
	}
	return list, nodePortsAt
}
