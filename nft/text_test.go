package nft_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

func TestPriorityText(t *testing.T) {
	for _, tt := range []struct {
		point    string
		priority int32
		want     string
	}{
		{"prerouting", -101, "dstnat - 1"}, {"prerouting", -100, "dstnat"}, {"prerouting", 100, "100"},
		{"output", -101, "-101"}, {"input", 100, "100"}, {"postrouting", 100, "srcnat"},
		{"postrouting", 99, "srcnat - 1"}, {"postrouting", 110, "srcnat + 10"}, {"postrouting", 111, "111"},
		{"postrouting", 0, "filter"}, {"output", -300, "raw"}, {"output", 51, "security + 1"},
	} {
		chain := &nft.Chain{Name: "base", Hook: &nft.Hook{Type: "nat", Point: tt.point, Priority: tt.priority}}
		got := nft.Op{Verb: nft.Add, Family: nft.IP, Chain: chain}.Text()
		want := "add chain ip kube-nft base { type nat hook " + tt.point + " priority " + tt.want + "; policy accept; }"
		if got != want {
			t.Errorf("%s %d: got  %s\nwant %s", tt.point, tt.priority, got, want)
		}
	}
}

func TestDurationText(t *testing.T) {
	for seconds, want := range map[uint64]string{0: "0s", 1: "1s", 59: "59s", 60: "1m", 61: "1m1s", 10800: "3h",
		86400: "1d", 90061: "1d1h1m1s"} {
		if got := nft.DurationText(nft.Update{Timeout: seconds}.Duration()); got != want {
			t.Errorf("%d s: got %s, want %s", seconds, got, want)
		}
	}
}

func TestAddrText(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::": "::", "::1": "::1", "::1:0": "::0.1.0.0", "::7f00:1": "::127.0.0.1",
		"::ffff:1.2.3.4": "::ffff:1.2.3.4", "64:ff9b::102:304": "64:ff9b::102:304", "1:0:0:2::3": "1:0:0:2::3",
	} {
		a := netip.MustParseAddr(addr)
		rule := nft.Rule{nft.AddressIn{Of: nft.Source, Prefix: netip.PrefixFrom(a, a.BitLen())}}
		if got := rule.Text(nft.IP6); got != "ip6 saddr "+want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}

// FuzzComment checks that no comment can end itself and go on as nft text, or be too long.
func FuzzComment(f *testing.F) {
	const longest = 127 // NFTNL_UDATA_COMMENT_MAXLEN in libnftnl, without the NUL
	for _, s := range nfttest.Comments {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := nft.PlainComment(s)
		if len(got) > longest {
			t.Errorf("%d bytes", len(got))
		}
		for _, c := range []byte(got) {
			if c < ' ' || c > '~' || c == '"' || c == '\\' {
				t.Errorf("%q has %q in it", got, c)
			}
		}
		if nft.PlainComment(got) != got {
			t.Errorf("%q is stripped again", got)
		}
	})
}

func BenchmarkText(b *testing.B) {
	tables := nft.Tables{nft.IP: nfttest.TableOf(nfttest.EndpointBatch(slices.Repeat([]int{10}, 10000)...))}
	for b.Loop() {
		_ = tables.Text()
	}
}

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"kube-proxy --v=2":           "kube-proxy --v=2",
		"für Größe — …":              "für Größe — …",
		"\x1b[2J\x1b]0;root\a":       `\u001b[2J\u001b]0;root\u0007`,
		"one\ntwo\tthree\r":          `one\ntwo\tthree\u000d`,
		"C1: \u009b31m":              `C1: \u009b31m`,
		"no character: \x9b31m \xff": `no character: \x9b31m \xff`,
		"\u202eexe.txt":              `\u202eexe.txt`,
		"\u2028\u00ad\U000e0041":     `\u2028\u00ad\udb40\udc41`,
		"\x7f\x00":                   `\u007f\u0000`,
		"replacement \ufffd":         "replacement \ufffd",
	} {
		if got := nft.Visible(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got, want := nft.VisibleLines("a\tb\n\x1bc\r\n"), "a\tb\n\\u001bc\\u000d\n"; got != want {
		t.Errorf("lines: got %q, want %q", got, want)
	}
}
