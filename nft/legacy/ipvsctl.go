package legacy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	link "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// Of linux/ip_vs.h.
const (
	ipvsFamily    = "IPVS"
	ipvsVersion   = 1
	ipvsDelServer = 3 // IPVS_CMD_DEL_SERVICE
	ipvsGetServer = 4 // IPVS_CMD_GET_SERVICE
	ipvsSetDest   = 6 // IPVS_CMD_SET_DEST
	ipvsGetDest   = 8 // IPVS_CMD_GET_DEST

	ipvsAttrServer   = 1
	ipvsAttrDest     = 2
	ipvsServerFamily = 1
	ipvsServerProto  = 2
	ipvsServerAddr   = 3
	ipvsServerPort   = 4
	ipvsDestAddr     = 1
	ipvsDestPort     = 2
	ipvsDestMethod   = 3
	ipvsDestWeight   = 4
	ipvsDestUpper    = 5
	ipvsDestLower    = 6
	ipvsDestActive   = 7
	ipvsDestInactive = 8
	ipvsDestFamily   = 11

	ipvsMasquerade = 0 // IP_VS_CONN_F_MASQ, the forwarding method of all destinations of kube-proxy's
)

// An ipvsSocket sends to ip_vs.
type ipvsSocket struct {
	*netlink.Conn
	family netlink.HeaderType
}

// dialIPVS opens a socket in the network namespace of the calling thread. The kernel may load ip_vs for that, so call
// it only where there are virtual servers.
func dialIPVS() (*ipvsSocket, error) {
	family, err := link.GenlFamilyGet(ipvsFamily)
	if err != nil {
		return nil, fmt.Errorf("ip_vs: %w", err)
	}
	c, err := dial(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	return &ipvsSocket{c, netlink.HeaderType(family.ID)}, nil
}

// list sends a request and calls each with the attributes of every message of the answer.
func (c *ipvsSocket) list(request []byte, each func([]byte)) error {
	return execute(c.Conn, c.family, netlink.Dump, request, each)
}

// change sends a message that changes something. A server or destination that is gone is no error.
func (c *ipvsSocket) change(request []byte) error {
	err := execute(c.Conn, c.family, netlink.Acknowledge, request, nil)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// closeServers sets the weights of the servers' destinations to 0. Then ip_vs refuses new connections
// there and goes on with those that it has. A kube-proxy that is started sets the weights again.
func closeServers(ctx context.Context, servers []Server) error {
	return eachServer(ctx, servers, func(c *ipvsSocket, s *Server) error {
		for _, endpoint := range s.open {
			if err := c.change(setDestination(s, endpoint)); err != nil {
				return fmt.Errorf("destination %s: %w", endpoint, err)
			}
		}
		return nil
	})
}

// deleteServers deletes virtual servers, and with them what ip_vs knows of their connections.
func deleteServers(ctx context.Context, servers []Server) error {
	return eachServer(ctx, servers, func(c *ipvsSocket, s *Server) error {
		return c.change(aboutServer(ipvsDelServer, s))
	})
}

// eachServer calls do for each server, with a socket.
func eachServer(ctx context.Context, servers []Server, do func(*ipvsSocket, *Server) error) error {
	if len(servers) == 0 {
		return nil
	}
	c, err := dialIPVS()
	if err != nil {
		return err
	}
	defer c.Close()
	for i := range servers {
		s := &servers[i]
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := do(c, s); err != nil {
			return fmt.Errorf("virtual server %s %s: %w", s.Protocol, s.Frontend, err)
		}
	}
	return nil
}

// decodeServer reads a virtual server; false if it has no address.
func decodeServer(data []byte) (s Server, ok bool) {
	addr, ok := ipvsAddress(attr.Find(data, ipvsServerAddr), host[uint16](attr.Find(data, ipvsServerFamily)))
	s.Protocol = tracker.Protocol(host[uint16](attr.Find(data, ipvsServerProto))).String()
	s.Frontend = netip.AddrPortFrom(addr, port(attr.Find(data, ipvsServerPort)))
	return s, ok && protocolNumbers[s.Protocol] != 0
}

// addDestination takes in a destination.
func (s *Server) addDestination(data []byte) {
	family := host[uint16](attr.Find(data, ipvsDestFamily))
	addr, ok := ipvsAddress(attr.Find(data, ipvsDestAddr), family)
	if !ok || addr.Is4() != s.Frontend.Addr().Is4() || host[uint32](attr.Find(data, ipvsDestMethod)) != ipvsMasquerade {
		s.foreign = true
	}
	for _, typ := range []uint16{ipvsDestActive, ipvsDestInactive} {
		s.Connections += int(host[uint32](attr.Find(data, typ)))
	}
	if host[uint32](attr.Find(data, ipvsDestWeight)) != 0 {
		s.open = append(s.open, netip.AddrPortFrom(addr, port(attr.Find(data, ipvsDestPort))))
	}
}

// ipvsAddress reads union nf_inet_addr.
func ipvsAddress(value []byte, family uint16) (addr netip.Addr, ok bool) {
	switch {
	case len(value) == 16 && family == unix.AF_INET:
		return netip.AddrFrom4([4]byte(value[:4])), true
	case len(value) == 16 && family == unix.AF_INET6:
		return netip.AddrFrom16([16]byte(value)), true
	}
	return addr, false
}

// port reads a number in network order; 0 if it is missing.
func port(value []byte) (n uint16) {
	_, _ = binary.Decode(value, binary.BigEndian, &n)
	return n
}

// host reads a number in the order of the host, as most are for ip_vs; 0 if it is missing.
func host[T uint16 | uint32](value []byte) (n T) {
	_, _ = binary.Decode(value, binary.NativeEndian, &n)
	return n
}

// aboutServer is a message that says no more than which virtual server it is about.
func aboutServer(command byte, s *Server) []byte {
	w := ipvsMessage(command)
	w.server(s)
	return w.Buf
}

// setDestination is the message that gives a destination of kube-proxy's the weight 0. It has to carry
// all that a destination has.
func setDestination(s *Server, endpoint netip.AddrPort) []byte {
	w := ipvsMessage(ipvsSetDest)
	w.server(s)
	at := w.Open(ipvsAttrDest)
	w.address(ipvsDestAddr, endpoint.Addr())
	w.Uint16(ipvsDestPort, endpoint.Port())
	for _, typ := range []uint16{ipvsDestWeight, ipvsDestUpper, ipvsDestLower} {
		w.host32(typ, 0)
	}
	w.host32(ipvsDestMethod, ipvsMasquerade)
	w.host16(ipvsDestFamily, uint16(tracker.FamilyOf(endpoint.Addr())))
	w.Close(at)
	return w.Buf
}

// An ipvsWriter writes messages to ip_vs.
type ipvsWriter struct{ attr.Writer }

// ipvsMessage begins a message with its generic header.
func ipvsMessage(command byte) *ipvsWriter {
	return &ipvsWriter{attr.Writer{Buf: []byte{command, ipvsVersion, 0, 0}}}
}

// server writes what a virtual server is known by. ip_vs has the numbers of families that netfilter has.
func (w *ipvsWriter) server(s *Server) {
	at := w.Open(ipvsAttrServer)
	w.host16(ipvsServerFamily, uint16(tracker.FamilyOf(s.Frontend.Addr())))
	w.host16(ipvsServerProto, uint16(protocolNumbers[s.Protocol]))
	w.address(ipvsServerAddr, s.Frontend.Addr())
	w.Uint16(ipvsServerPort, s.Frontend.Port())
	w.Close(at)
}

// address writes an address as union nf_inet_addr of linux/netfilter.h, 16 bytes in either family.
func (w *ipvsWriter) address(typ uint16, addr netip.Addr) {
	var value [16]byte
	copy(value[:], addr.AsSlice())
	w.Bytes(typ, string(value[:]))
}

// host16 and host32 write numbers in the order of the host.
func (w *ipvsWriter) host16(typ, value uint16) {
	w.Bytes(typ, string(binary.NativeEndian.AppendUint16(nil, value)))
}

func (w *ipvsWriter) host32(typ uint16, value uint32) {
	w.Bytes(typ, string(binary.NativeEndian.AppendUint32(nil, value)))
}
