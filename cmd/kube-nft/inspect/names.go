package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
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
	var sources, destinations []netip.Addr
	var err error
	if c.names.source != "" {
		if sources, err = nodeAddresses(c.names.source); err != nil {
			return err
		}
	}
	if c.names.destination != "" {
		if destinations, err = nodeAddresses(c.names.destination); err != nil {
			return err
		}
	}
	ofFamily := func(list []netip.Addr, is4 bool) (netip.Addr, bool) {
		i := slices.IndexFunc(list, func(a netip.Addr) bool { return a.Is4() == is4 })
		if i < 0 {
			return netip.Addr{}, false
		}
		return list[i], true
	}
	lacking := "" // the first Node without an address of a family
	for _, f := range nft.Families {
		is4 := f == nft.IP
		if c.source.IsValid() && c.source.Is4() != is4 || c.destination.IsValid() && c.destination.Is4() != is4 {
			continue
		}
		source, destination, port, protocol := c.source, c.destination, c.port, c.protocol
		var found bool
		if c.names.source != "" {
			if source, found = ofFamily(sources, is4); !found {
				lacking = cmp.Or(lacking, c.names.source)
				continue
			}
		}
		if c.names.destination != "" {
			if destination, found = ofFamily(destinations, is4); !found {
				lacking = cmp.Or(lacking, c.names.destination)
				continue
			}
			if protocol == explainedProtocols["icmp"] && !is4 {
				protocol = icmpv6
			}
		}
		if c.names.service.name != "" {
			frontend, err := c.names.service.frontend(tables[f])
			if err != nil {
				return err
			}
			if frontend == nil {
				continue
			}
			if destination = frontend.Address; frontend.NodePort() {
				if destination, found = ofFamily(here.addresses, is4); !found {
					continue
				}
			}
			port, protocol = frontend.Port, uint8(frontend.Protocol)
		}
		c.source, c.destination, c.port, c.protocol = source, destination, port, protocol
		return nil
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
	return nil, config.Usagef("Service %s has several ports: name one of %s", s, output.Alternatives(keys))
}
