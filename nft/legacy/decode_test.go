package legacy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// encoded returns the attributes that write adds.
func encoded(write func(w *attr.Writer)) string {
	var w attr.Writer
	write(&w)
	return string(w.Buf)
}

// read is how a message's attributes are read.
func read(data string) *attr.Reader {
	list := attr.NewReader([]byte(data))
	return &list
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
			list := read(tt.data)
			got := decodeRule(list, nft.IP)
			if err := list.Err(); err != nil {
				t.Fatal(err)
			}
			want := wireRule{"nat", "OUTPUT", 7, tt.want}
			if diff := cmp.Diff(want, got, compareAddr, cmp.AllowUnexported(wireRule{}, rule{}, destination{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzWire feeds bytes to everything that reads netfilter's messages: no panic.
func FuzzWire(f *testing.F) {
	f.Add(ruleBytes(matchBytes("comment", "portals\x00"), jumpBytes("KUBE-SERVICES")))
	f.Add(encoded(func(w *attr.Writer) { w.Name(unix.NFTA_CHAIN_NAME, "nat"); w.Uint32(unix.NFTA_CHAIN_USE, 3) }))
	f.Add(setBytes("KUBE-CLUSTER-IP", 12, 1))
	f.Fuzz(func(t *testing.T, data string) {
		_ = decodeRule(read(data), nft.IP)
		_, _, _ = decodeChain(read(data))
		_ = decodeSet(read(data))
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
	list := read(setBytes("KUBE-CLUSTER-IP", 12, 2))
	got := decodeSet(list)
	if want := (Set{"KUBE-CLUSTER-IP", 12, 2}); list.Err() != nil || got != want {
		t.Errorf("%+v (%v), want %+v", got, list.Err(), want)
	}
}

// ipvsFile has the form of /proc/net/ip_vs.
const ipvsFile = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr
  -> C0A80002:192B      Masq    1      0          0
UDP  [fd00:0010:0096:0000:0000:0000:0000:000a]:0035 rr persistent 10800
  -> [fd00:0010:0244:0000:0000:0000:0000:0002]:0035      Masq    0      0          0
FWM  00000001 rr
  -> C0A80003:192B      Masq    1      0          0
`

func TestParseServers(t *testing.T) {
	got, err := parseServers(strings.NewReader(ipvsFile))
	if err != nil {
		t.Fatal(err)
	}
	want := []Server{
		{"tcp", netip.MustParseAddrPort("10.96.0.1:443"), 1},
		{"udp", netip.MustParseAddrPort("[fd00:10:96::a]:53"), 0},
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
