package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// comments are those of a Service port's elements: at addresses of load balancers, at those of ipMode Router, and at
// all other frontends.
type comments struct{ loadBalancer, router, other string }

func commentsOf(p *tracker.ServicePort, name string) comments {
	c := comments{other: name}
	if p.Settings != (tracker.Settings{}) {
		c.other = layout.CommentWith(p, "")
	}
	if len(p.LoadBalancers) > 0 {
		c.loadBalancer = layout.CommentWith(p, layout.LoadBalancerWord)
	}
	if len(p.Routers) > 0 {
		c.router = layout.CommentWith(p, layout.RouterWord)
	}
	return c
}

// setLoadBalancer marks the address of a load balancer in the comment of its element. At an address of ipMode Router,
// packets that no endpoint may serve pass on.
func (c claim) setLoadBalancer(f tracker.Frontend, s *program) {
	if c.kind != loadBalancerIP {
		return
	}
	s.comment = c.port.comments.loadBalancer
	if _, router := slices.BinarySearchFunc(c.port.current.Routers, f.Address, netip.Addr.Compare); !router {
		return
	}
	s.comment = c.port.comments.router
	if s.policy.Kind == layout.Refused || s.policy.Kind == layout.Dropped {
		s.policy.Kind = layout.Passed
	}
	s.policy.Router = s.policy.Kind == layout.ExternalLocal && c.port.local.Len() == 0
}
