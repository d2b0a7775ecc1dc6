package inspect

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

// ofNode returns the settings of Node n1, and the API server of a cluster of two Nodes with podCIDRs and one without.
func ofNode(t *testing.T) (*config.Config, *httptest.Server) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind": "NodeList", "apiVersion": "v1", "items": [
			{"metadata": {"name": "n0"}},
			{"metadata": {"name": "n1"}, "spec": {"podCIDRs": ["10.244.1.0/24", "fd00:1::/64"]}},
			{"metadata": {"name": "n2"}, "spec": {"podCIDRs": ["10.244.2.0/24", "fd00:2::/64"]}}]}`)
	}))
	t.Cleanup(server.Close)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	reader := config.NewReader(flags)
	err := flags.Parse([]string{"--master", server.URL, "--hostname-override", "n1", "--kube-api-content-type",
		"application/json"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := reader.Read()
	if err != nil {
		t.Fatal(err)
	}
	return c, server
}

// TestElsewhere: explain says that a pod runs on another node, whose rules its packets meet, and that its answer is
// another node's.
func TestElsewhere(t *testing.T) {
	c, server := ofNode(t)
	for _, tt := range []struct {
		name, source string
		edit         func(*nft.Packet)
		node         string
	}{
		{"a pod of this node", "10.244.1.9", nil, ""},
		{"a pod of another node", "10.244.2.9", nil, "n2"},
		{"an IPv6 pod of another node", "fd00:2::9", nil, "n2"},
		{"a client outside, or a pod of a Node without podCIDRs", "192.0.2.9", nil, ""},
		{"to an address of this node", "10.244.2.9", func(p *nft.Packet) { p.DestinationLocal = true }, ""},
	} {
		p := nft.Packet{Source: netip.MustParseAddr(tt.source)}
		if tt.edit != nil {
			tt.edit(&p)
		}
		got := elsewhere(t.Context(), c, p)
		if (got == "") != (tt.node == "") || !strings.Contains(got, "a pod of Node "+tt.node) && tt.node != "" {
			t.Errorf("%s: got %q, want Node %q", tt.name, got, tt.node)
		}
	}
	server.Close()
	if got := elsewhere(t.Context(), c, nft.Packet{Source: netip.MustParseAddr("10.244.2.9")}); got != "" {
		t.Errorf("without an API server: %q", got)
	}
}

// TestElsewhereInKernel: a pod behind an interface of this node is its pod, though another Node's spec.podCIDRs have
// the address, as they may with Calico's pools. A pod behind a gateway is another node's, and so is one behind a
// tunnel.
func TestElsewhereInKernel(t *testing.T) {
	c, _ := ofNode(t)
	pod := netip.MustParseAddr("10.244.2.9")
	node := lab.Open(t, lab.NewNamespace)
	err := node.Do(func() error {
		lab.Run(t, "", "ip", "tuntap", "add", "tunnel", "mode", "tun")
		err := errors.Join(lab.AddSink("pod"), lab.AddSink("eth0"), lab.SetUp("tunnel"),
			lab.AddAddress("eth0", netip.MustParsePrefix("192.0.2.1/24")),
			lab.AddRoute("pod", netip.PrefixFrom(pod, 32), netip.Addr{}),
			lab.AddRoute("eth0", netip.MustParsePrefix("10.244.2.0/24"), netip.MustParseAddr("192.0.2.2")),
			lab.AddRoute("tunnel", netip.MustParsePrefix("10.244.2.128/25"), netip.Addr{}))
		if got := elsewhere(t.Context(), c, nft.Packet{Source: pod}); got != "" {
			t.Errorf("a pod of this node: %q", got)
		}
		for _, text := range []string{"10.244.2.10", "10.244.2.130"} {
			other := netip.MustParseAddr(text)
			if got := elsewhere(t.Context(), c, nft.Packet{Source: other}); !strings.Contains(got, "a pod of Node n2") {
				t.Errorf("%s, a pod of another node: %q", other, got)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
