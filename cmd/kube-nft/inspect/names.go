package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// names are the parts of a connection that are no addresses; empty where they are.
type names struct {
	source      string // a Node
	destination string // a Node
	service     serviceName
}

// A serviceName is NAMESPACE/SERVICE, with a port by name or number and a protocol if they are given.
type serviceName struct{ namespace, name, port, protocol string }

// String is the name as on the command line.
func (s serviceName) String() string {
	text := s.namespace + "/" + s.name
	if s.port != "" {
		text += ":" + s.port
	}
	if s.protocol != "" {
		text += "/" + s.protocol
	}
	return text
}

// isNodeName reports whether a text can be the name of a Node and is no address with a mistake in it.
func isNodeName(text string) bool {
	return len(validation.IsDNS1123Subdomain(text)) == 0 && strings.ContainsAny(text, "abcdefghijklmnopqrstuvwxyz")
}

// parseService reads NAMESPACE/SERVICE[:PORT][/PROTO]. What can be an address with a protocol is none.
func parseService(text string) (s serviceName, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) == 3 {
		s.protocol = strings.ToLower(parts[2])
		if _, known := explainedProtocols[s.protocol]; !known || s.protocol == "icmp" {
			return s, false
		}
		parts = parts[:2]
	}
	if len(parts) != 2 || len(validation.IsDNS1123Label(parts[0])) > 0 {
		return s, false
	}
	s.namespace = parts[0]
	s.name, s.port, _ = strings.Cut(parts[1], ":")
	return s, len(validation.IsDNS1123Label(s.name)) == 0 && (s.name != "icmp" || s.port != "")
}

// resolve replaces names with addresses: of Services as the tables have them, of Nodes by nodeAddresses.
// here are the addresses of this node.
func (c *connection) resolve(tables map[nft.Family]*readback.Table, here *host,
	nodeAddresses func(name string) ([]netip.Addr, error)) error {
	nodes := make(map[string][]netip.Addr)
	for _, name := range []string{c.names.source, c.names.destination} {
		if name == "" {
			continue
		}
		var err error
		if nodes[name], err = nodeAddresses(name); err != nil {
			return err
		}
	}
	lacking := "" // the first Node without an address of a family
	for _, f := range nft.Families {
		resolved, without, err := c.in(f, nodes, here, tables[f])
		if err != nil {
			return err
		}
		if resolved != nil {
			*c = *resolved
			return nil
		}
		lacking = cmp.Or(lacking, without)
	}
	switch {
	case lacking != "":
		return fmt.Errorf("Node %s has no address of the family of the connection", lacking)
	case c.names.service.name != "":
		return fmt.Errorf("no Service %s is programmed here for the family of the source; kube-nft get services lists them",
			c.names.service)
	}
	return nil
}

// in returns the connection with addresses of a family in place of names, nil if there are none. without is the Node
// that has none.
func (c connection) in(f nft.Family, nodes map[string][]netip.Addr, here *host,
	table *readback.Table) (resolved *connection, without string, err error) {
	is := func(a netip.Addr) bool { return tracker.FamilyOf(a) == f }
	if c.source.IsValid() && !is(c.source) || c.destination.IsValid() && !is(c.destination) {
		return nil, "", nil
	}
	first := func(list []netip.Addr) (addr netip.Addr) {
		if i := slices.IndexFunc(list, is); i >= 0 {
			addr = list[i]
		}
		return addr
	}
	if name := c.names.source; name != "" {
		if c.source = first(nodes[name]); !c.source.IsValid() {
			return nil, name, nil
		}
	}
	if name := c.names.destination; name != "" {
		if c.destination = first(nodes[name]); !c.destination.IsValid() {
			return nil, name, nil
		}
		if c.protocol == unix.IPPROTO_ICMP && f == nft.IP6 {
			c.protocol = unix.IPPROTO_ICMPV6
		}
	}
	if c.names.service.name == "" {
		return &c, "", nil
	}
	frontend, err := c.names.service.frontend(table)
	if err != nil || frontend == nil {
		return nil, "", err
	}
	c.destination, c.port, c.protocol = frontend.Address, frontend.Port, uint8(frontend.Protocol)
	if frontend.NodePort() {
		if c.destination = first(here.addresses); !c.destination.IsValid() {
			return nil, "", nil
		}
	}
	return &c, "", nil
}

// matches reports whether a frontend is one of the Service, and of the port and protocol if they are given.
func (s serviceName) matches(p *readback.Frontend) bool {
	return p.Name.Namespace == s.namespace && p.Name.Name == s.name &&
		(s.protocol == "" || strings.EqualFold(p.Protocol.String(), s.protocol)) &&
		(s.port == "" || p.Name.Port == s.port || strconv.Itoa(int(p.Port)) == s.port)
}

// frontend returns the frontend of a table at which a client would ask for the Service port: its cluster
// IP, else an address from outside, else its node port; nil if there is none.
func (s serviceName) frontend(t *readback.Table) (*readback.Frontend, error) {
	if t == nil {
		return nil, nil
	}
	rank := func(p *readback.Frontend) int {
		switch p.Kind {
		case readback.KindClusterIP:
			return 0
		case readback.KindNodePort:
			return 2
		}
		return 1
	}
	best := make(map[string]*readback.Frontend) // by port and protocol
	for _, p := range t.Frontends() {
		if !s.matches(&p) {
			continue
		}
		key := p.Name.Port + "/" + strings.ToLower(p.Protocol.String())
		if have := best[key]; have == nil || rank(&p) < rank(have) {
			best[key] = &p
		}
	}
	keys := slices.Sorted(maps.Keys(best))
	switch len(keys) {
	case 0:
		return nil, nil
	case 1:
		return best[keys[0]], nil
	}
	for i, key := range keys {
		keys[i] = serviceName{namespace: s.namespace, name: s.name}.String() + ":" + key
	}
	return nil, config.Usagef("Service %s has several ports: name one of %s", s, tracker.Enumerate(keys))
}
