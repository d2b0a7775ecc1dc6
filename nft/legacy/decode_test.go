package legacy

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// encoded returns the attributes that write adds.
func encoded(write func(w *attr.Writer)) string {
	var w attr.Writer
	write(&w)
	return string(w.Buf)
}

// expressionBytes returns an expression with its parameters.
func expressionBytes(name, params string) string {
	return encoded(func(w *attr.Writer) {
		w.Name(unix.NFTA_EXPR_NAME, name)
		w.Bytes(unix.NLA_F_NESTED|unix.NFTA_EXPR_DATA, params)
	})
}

// ruleBytes returns the attributes of a rule.
func ruleBytes(expressions ...string) string {
	return encoded(func(w *attr.Writer) {
		w.Name(unix.NFTA_RULE_TABLE, "nat")
		w.Name(unix.NFTA_RULE_CHAIN, "OUTPUT")
		w.Uint64(unix.NFTA_RULE_HANDLE, 7)
		list := w.Open(unix.NFTA_RULE_EXPRESSIONS)
		for _, x := range expressions {
			w.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, x)
		}
		w.Close(list)
	})
}

// matchBytes returns an extension of x_tables.
func matchBytes(name, info string) string {
	return expressionBytes("match", encoded(func(w *attr.Writer) {
		w.Name(unix.NFTA_MATCH_NAME, name)
		w.Bytes(unix.NFTA_MATCH_INFO, info)
	}))
}

// ctBytes returns an expression that loads something of the connection.
func ctBytes(key uint32) string {
	return expressionBytes("ct", encoded(func(w *attr.Writer) { w.Uint32(unix.NFTA_CT_KEY, key) }))
}

// jumpBytes returns a jump.
func jumpBytes(chain string) string {
	return expressionBytes("immediate", encoded(func(w *attr.Writer) {
		data := w.Open(unix.NFTA_IMMEDIATE_DATA)
		verdict := w.Open(unix.NFTA_DATA_VERDICT)
		w.Name(unix.NFTA_VERDICT_CHAIN, chain)
		w.Close(verdict)
		w.Close(data)
	}))
}

func TestDecodeRule(t *testing.T) {
	for _, tt := range []struct {
		name string
		data string
		want rule
	}{
		{"jump of kube-proxy's", ruleBytes(matchBytes("conntrack", "x"), matchBytes("comment", "portals\x00\x00"),
			expressionBytes("counter", ""), jumpBytes("KUBE-SERVICES")),
			rule{target: "KUBE-SERVICES", comment: "portals", plain: true}},
		{"another extension", ruleBytes(matchBytes("addrtype", "x"), jumpBytes("DOCKER")), rule{target: "DOCKER"}},
		{"a condition", ruleBytes(expressionBytes("payload", ""), jumpBytes("ADMIN")), rule{target: "ADMIN"}},
		{"a native state", ruleBytes(ctBytes(unix.NFT_CT_STATE), expressionBytes("bitwise", ""),
			expressionBytes("cmp", ""), jumpBytes("KUBE-SERVICES")), rule{target: "KUBE-SERVICES", plain: true}},
		{"a native mark", ruleBytes(ctBytes(unix.NFT_CT_MARK), expressionBytes("cmp", ""), jumpBytes("KUBE-SERVICES")),
			rule{target: "KUBE-SERVICES"}},
		{"none", ruleBytes(), rule{plain: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := decodeRule([]byte(tt.data), nft.IP)
			want := wireRule{"nat", "OUTPUT", 7, tt.want}
			if diff := cmp.Diff(want, got, compareAddr, cmp.AllowUnexported(wireRule{}, rule{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzWire feeds bytes to everything that reads netfilter's messages: no panic.
func FuzzWire(f *testing.F) {
	f.Add(ruleBytes(matchBytes("comment", "portals\x00"), jumpBytes("KUBE-SERVICES")))
	f.Add(setBytes("KUBE-CLUSTER-IP", 12, 1))
	f.Fuzz(func(t *testing.T, data string) {
		_ = decodeRule([]byte(data), nft.IP)
		_ = decodeSet([]byte(data))
	})
}

// setBytes returns the attributes of an ipset.
func setBytes(name string, elements, references uint32) string {
	return encoded(func(w *attr.Writer) {
		w.Name(ipsetAttrName, name)
		data := w.Open(ipsetAttrData)
		w.Uint32(ipsetAttrCount, elements)
		w.Uint32(ipsetAttrRefs, references)
		w.Close(data)
	})
}

func TestDecodeSet(t *testing.T) {
	want := Set{"KUBE-CLUSTER-IP", 12, 2}
	if got := decodeSet([]byte(setBytes(want.Name, 12, 2))); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestHasServers reads lists in the form of /proc/net/ip_vs.
func TestHasServers(t *testing.T) {
	const head = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n" +
		"  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	for list, want := range map[string]bool{
		"": false, head: false, head + "FWM  00000001 rr\n": false, head + "TCP  0A600001:01BB rr\n": true,
		head + "FWM  00000001 rr\n  -> C0A80003:192B      Masq    1      0          0\nSCTP 0A600001:01BB rr\n": true,
		head + "UDP  [fd00:0010:0096:0000:0000:0000:0000:000a]:0035 rr persistent 10800\n":                      true,
	} {
		if got := hasServers([]byte(list)); got != want {
			t.Errorf("%q: %v, want %v", list, got, want)
		}
	}
}

// destinationBytes is what the kernel says of a destination.
func destinationBytes(endpoint string, method, weight, active, inactive uint32) []byte {
	at := netip.MustParseAddrPort(endpoint)
	var w ipvsWriter
	w.address(ipvsDestAddr, at.Addr())
	w.Uint16(ipvsDestPort, at.Port())
	w.host32(ipvsDestMethod, method)
	w.host32(ipvsDestWeight, weight)
	w.host32(ipvsDestActive, active)
	w.host32(ipvsDestInactive, inactive)
	w.host16(ipvsDestFamily, uint16(tracker.FamilyOf(at.Addr())))
	return w.Buf
}

// TestDecodeServer reads servers back from our own messages about them, and destinations as the kernel lists them.
func TestDecodeServer(t *testing.T) {
	for _, want := range []Server{
		{Protocol: "tcp", Frontend: netip.MustParseAddrPort("10.96.0.1:443")},
		{Protocol: "udp", Frontend: netip.MustParseAddrPort("[fd00:10:96::a]:53")},
		{Protocol: "sctp", Frontend: netip.MustParseAddrPort("192.168.0.1:3868")},
	} {
		got, ok := decodeServer(attr.Find(aboutServer(ipvsDelServer, &want)[headerLen:], ipvsAttrServer))
		if !ok || got.Protocol != want.Protocol || got.Frontend != want.Frontend {
			t.Errorf("%+v, %v; want %+v", got, ok, want)
		}
	}
	s := Server{Protocol: "tcp", Frontend: netip.MustParseAddrPort("10.96.0.1:443")}
	if got, want := s.command(), "ipvsadm -D -t 10.96.0.1:443"; got != want {
		t.Errorf("command %q, want %q", got, want)
	}
	s.addDestination(destinationBytes("192.168.0.2:6443", 0, 1, 2, 1))
	s.addDestination(destinationBytes("192.168.0.3:6443", 0, 0, 1, 0))
	want := []netip.AddrPort{netip.MustParseAddrPort("192.168.0.2:6443")}
	if s.foreign || s.Connections != 4 || !slices.Equal(s.open, want) {
		t.Errorf("%+v, want 4 connections, and only %v takes new ones", s, want)
	}
	for _, of := range [][]byte{nil, destinationBytes("192.168.0.2:6443", 3, 1, 0, 0),
		destinationBytes("[fd00::1]:6443", 0, 1, 0, 0)} {
		other := s
		if other.addDestination(of); !other.foreign {
			t.Errorf("%x: a destination of kube-proxy's", of)
		}
	}
	mark := ipvsMessage(ipvsGetServer)
	mark.host16(ipvsServerFamily, unix.AF_INET)
	mark.host32(5, 7) // IPVS_SVC_ATTR_FWMARK
	if s, ok := decodeServer(mark.Buf[headerLen:]); ok {
		t.Errorf("a server by firewall mark is %+v", s)
	}
}

// checkMessage expects a message to ip_vs with so many attributes, all well-formed.
func checkMessage(t *testing.T, message []byte, attributes int) {
	t.Helper()
	list := attr.NewReader(message[headerLen:])
	for list.Next() {
		attributes--
		nested := list.Nested()
		for nested.Next() {
			continue
		}
		if err := nested.Err(); err != nil {
			t.Error(err)
		}
	}
	if err := list.Err(); err != nil || attributes != 0 {
		t.Errorf("%x: %v, %d attributes are missing", message, err, attributes)
	}
}

// TestIPVSMessages holds the messages against what linux/ip_vs.h wants, byte by byte.
func TestIPVSMessages(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	s := Server{Protocol: "tcp", Frontend: netip.MustParseAddrPort("10.96.0.1:443")}
	const server = "30000180" + "0600010002000000" + "0600020006000000" + // AF_INET, TCP
		"14000300" + "0a600001" + "000000000000000000000000" + "0600040001bb0000"
	const destination = "48000280" + "14000100" + "c0a80002" + "000000000000000000000000" + "06000200192b0000" +
		"0800040000000000" + "0800050000000000" + "0800060000000000" + "0800030000000000" + "06000b0002000000"
	if got, want := hex.EncodeToString(aboutServer(ipvsDelServer, &s)), "03010000"+server; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	got := hex.EncodeToString(setDestination(&s, netip.MustParseAddrPort("192.168.0.2:6443")))
	if want := "06010000" + server + destination; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// FuzzServers feeds attributes to what reads virtual servers and destinations: what it takes is valid, and messages
// about it are well-formed.
func FuzzServers(f *testing.F) {
	server := Server{Protocol: "tcp", Frontend: netip.MustParseAddrPort("10.96.0.1:443")}
	f.Add(attr.Find(aboutServer(ipvsDelServer, &server)[headerLen:], ipvsAttrServer),
		destinationBytes("192.168.0.2:6443", 0, 1, 2, 1))
	f.Fuzz(func(t *testing.T, server, destination []byte) {
		s, ok := decodeServer(server)
		if !ok {
			return
		}
		s.addDestination(destination)
		if !s.Frontend.IsValid() || s.Connections < 0 {
			t.Errorf("server %+v", s)
		}
		checkMessage(t, aboutServer(ipvsDelServer, &s), 1)
		for _, endpoint := range s.open {
			if !s.foreign {
				checkMessage(t, setDestination(&s, endpoint), 2)
			}
		}
	})
}
