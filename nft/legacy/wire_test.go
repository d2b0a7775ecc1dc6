package legacy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// encoded returns the attributes that build adds.
func encoded(build func(e encoder)) []byte {
	e := newEncoder()
	build(e)
	return e.message(0, 0, 0).Data[genmsgLen:]
}

// expressionBytes returns an expression with its parameters.
func expressionBytes(name string, params []byte) []byte {
	return encoded(func(e encoder) {
		e.String(unix.NFTA_EXPR_NAME, name)
		e.Bytes(unix.NLA_F_NESTED|unix.NFTA_EXPR_DATA, params)
	})
}

// ruleBytes returns the attributes of a rule.
func ruleBytes(expressions ...[]byte) []byte {
	list := encoded(func(e encoder) {
		for _, x := range expressions {
			e.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, x)
		}
	})
	return encoded(func(e encoder) {
		e.String(unix.NFTA_RULE_TABLE, "nat")
		e.String(unix.NFTA_RULE_CHAIN, "OUTPUT")
		e.Uint64(unix.NFTA_RULE_HANDLE, 7)
		e.Bytes(unix.NLA_F_NESTED|unix.NFTA_RULE_EXPRESSIONS, list)
	})
}

// matchBytes returns an extension of x_tables.
func matchBytes(name, info string) []byte {
	return expressionBytes("match", encoded(func(e encoder) {
		e.String(unix.NFTA_MATCH_NAME, name)
		e.Bytes(unix.NFTA_MATCH_INFO, []byte(info))
	}))
}

// ctBytes returns an expression that loads something of the connection.
func ctBytes(key uint32) []byte {
	return expressionBytes("ct", encoded(func(e encoder) { e.Uint32(unix.NFTA_CT_KEY, key) }))
}

// jumpBytes returns a jump.
func jumpBytes(chain string) []byte {
	verdict := encoded(func(e encoder) { e.String(unix.NFTA_VERDICT_CHAIN, chain) })
	data := encoded(func(e encoder) { e.Bytes(unix.NLA_F_NESTED|unix.NFTA_DATA_VERDICT, verdict) })
	return expressionBytes("immediate", encoded(func(e encoder) {
		e.Bytes(unix.NLA_F_NESTED|unix.NFTA_IMMEDIATE_DATA, data)
	}))
}

func TestDecodeRule(t *testing.T) {
	for _, tt := range []struct {
		name string
		data []byte
		want rule
	}{
		{"jump of kube-proxy's", ruleBytes(matchBytes("conntrack", "x"), matchBytes("comment", "portals\x00\x00"),
			expressionBytes("counter", nil), jumpBytes("KUBE-SERVICES")),
			rule{target: "KUBE-SERVICES", comment: "portals", plain: true}},
		{"another extension", ruleBytes(matchBytes("addrtype", "x"), jumpBytes("DOCKER")), rule{target: "DOCKER"}},
		{"a condition", ruleBytes(expressionBytes("payload", nil), jumpBytes("ADMIN")), rule{target: "ADMIN"}},
		{"a native state", ruleBytes(ctBytes(unix.NFT_CT_STATE), expressionBytes("bitwise", nil),
			expressionBytes("cmp", nil), jumpBytes("KUBE-SERVICES")), rule{target: "KUBE-SERVICES", plain: true}},
		{"a native mark", ruleBytes(ctBytes(unix.NFT_CT_MARK), expressionBytes("cmp", nil), jumpBytes("KUBE-SERVICES")),
			rule{target: "KUBE-SERVICES"}},
		{"none", ruleBytes(), rule{plain: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeRule(tt.data)
			if err != nil {
				t.Fatal(err)
			}
			want := wireRule{"nat", "OUTPUT", 7, tt.want}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(wireRule{}, rule{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzWire feeds bytes to everything that reads netfilter's messages: no panic.
func FuzzWire(f *testing.F) {
	f.Add(ruleBytes(matchBytes("comment", "portals\x00"), jumpBytes("KUBE-SERVICES")))
	f.Add(encoded(func(e encoder) { e.String(unix.NFTA_CHAIN_NAME, "nat"); e.Uint32(unix.NFTA_CHAIN_USE, 3) }))
	f.Add(encoded(func(e encoder) {
		e.String(ipsetAttrName, "KUBE-CLUSTER-IP")
		e.Bytes(ipsetAttrData, encoded(func(e encoder) { e.Uint32(ipsetAttrRefs, 1) }))
	}))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = decodeRule(data)
		_, _ = decodeChain(data)
		_, _ = decodeSet(data)
		_, _ = payload(netlink.Message{Data: data})
	})
}

func TestDecodeSet(t *testing.T) {
	data := encoded(func(e encoder) {
		e.String(ipsetAttrName, "KUBE-CLUSTER-IP")
		e.Bytes(ipsetAttrData, encoded(func(e encoder) {
			e.Uint32(ipsetAttrCount, 12)
			e.Uint32(ipsetAttrRefs, 2)
		}))
	})
	got, err := decodeSet(data)
	if want := (Set{"KUBE-CLUSTER-IP", 12, 2}); err != nil || got != want {
		t.Errorf("%+v (%v), want %+v", got, err, want)
	}
}

// ipvsFile has the form of /proc/net/ip_vs.
const ipvsFile = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr
  -> C0A80002:192B      Masq    1      0          0
UDP  [fd00:0010:0096:0000:0000:0000:0000:000a]:0035 rr persistent 10800
FWM  00000001 rr
`

func TestParseServers(t *testing.T) {
	got, err := parseServers(strings.NewReader(ipvsFile))
	if err != nil {
		t.Fatal(err)
	}
	want := []Server{
		{"tcp", netip.MustParseAddrPort("10.96.0.1:443")},
		{"udp", netip.MustParseAddrPort("[fd00:10:96::a]:53")},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := got[1].command(), "ipvsadm -D -u [fd00:10:96::a]:53"; got != want {
		t.Errorf("command %q, want %q", got, want)
	}
}

func TestParseServersRefused(t *testing.T) {
	for line, want := range map[string]string{
		"TCP 0A600001 rr":       `virtual server "0A600001": no port`,
		"TCP 0A6000:01BB rr":    `virtual server "0A6000:01BB": not an IPv4 address in hexadecimal`,
		"UDP 0A600001:1FFFF rr": `virtual server "0A600001:1FFFF": strconv.ParseUint: parsing "1FFFF": value out of range`,
	} {
		if _, err := parseServers(strings.NewReader(line)); err == nil || err.Error() != want {
			t.Errorf("%q: error %v, want %s", line, err, want)
		}
	}
}

// FuzzServers feeds lines to the parser of /proc/net/ip_vs: what it takes is valid.
func FuzzServers(f *testing.F) {
	f.Add(ipvsFile)
	f.Fuzz(func(t *testing.T, text string) {
		servers, err := parseServers(strings.NewReader(text))
		for _, s := range servers {
			if err == nil && !s.Frontend.IsValid() {
				t.Errorf("server %v", s)
			}
		}
	})
}
