package services

import (
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// setReset says whether connections to endpoints that have left are reset. With an endpoint or without any, deleting
// the conntrack entry suffices: the next segment goes to an endpoint, or is rejected. Where a traffic policy Local
// drops new connections, a rule resets segments of TCP connections under way.
func (c claim) setReset(s *program) {
	p := c.port.current
	s.reset = p.Settings.ResetDeparted && p.ID.Protocol != tracker.UDP
	dropped := s.policy.Kind == layout.Dropped || s.policy.Kind == layout.ExternalLocal && c.port.local.Len() == 0
	s.policy.Resets = s.reset && dropped && p.ID.Protocol == tracker.TCP && !s.policy.Router
}
