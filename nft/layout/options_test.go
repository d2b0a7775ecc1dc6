package layout

import (
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/tracker"
)

// TestOptions writes and reads comments: what a Service port asks for is read back, and is no part of its name.
func TestOptions(t *testing.T) {
	all := tracker.Settings{KeepUnreadyUDP: true, ResetDeparted: true, LocalFallback: true, SourceRangesForNodePorts: true,
		Ping: true, Eject: true}
	for _, tt := range []struct {
		protocol tracker.Protocol
		local    bool
		settings tracker.Settings
		comment  string
		want     []string
	}{
		{tracker.TCP, true, tracker.Settings{}, "shop/web:http", nil},
		{tracker.TCP, true, all, "shop/web:http reset-departed,eject,local-fallback,ping",
			[]string{"kube-nft.io/connections-of-departed: reset", "kube-nft.io/eject: true",
				"kube-nft.io/local-fallback: cluster",
				"kube-nft.io/ping: true"}},
		{tracker.UDP, false, all, "shop/web:http ping,keep-unready",
			[]string{"kube-nft.io/ping: true", "kube-nft.io/udp-unready: keep"}},
	} {
		p := &tracker.ServicePort{Lists: new(tracker.Lists), PortSpec: &tracker.PortSpec{
			ID:       tracker.PortID{Namespace: "shop", Service: "web", Port: "http", Protocol: tt.protocol},
			Settings: tt.settings, ExternalLocal: tt.local}}
		comment := CommentWith(p, "")
		if comment != tt.comment || !slices.Equal(ParseOptions(comment), tt.want) {
			t.Errorf("%q, %v; want %q, %v", comment, ParseOptions(comment), tt.comment, tt.want)
		}
		if name := ParsePortName(comment); name.String() != Comment(p.ID) || NameIn(comment) != Comment(p.ID) {
			t.Errorf("%q names %s", comment, name)
		}
	}
}

// TestOptionsOfLongNames: what does not fit is cut off, not the name.
func TestOptionsOfLongNames(t *testing.T) {
	long := strings.Repeat("x", 63)
	p := &tracker.ServicePort{Lists: new(tracker.Lists), PortSpec: &tracker.PortSpec{
		ID:       tracker.PortID{Namespace: long, Service: long, Port: long, Protocol: tracker.TCP},
		Settings: tracker.Settings{ResetDeparted: true}}}
	if comment := CommentWith(p, LoadBalancerWord); comment != Comment(p.ID) || ParseOptions(comment) != nil ||
		HasWord(comment, LoadBalancerWord) {
		t.Errorf("%q shows %v", comment, ParseOptions(comment))
	}
}
