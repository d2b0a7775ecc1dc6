package change_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
)

// TestListing puts sets together from elements in any order.
func TestListing(t *testing.T) {
	addresses := nft.Set{Name: "addresses", Key: []nft.Field{nft.FieldAddr}}
	prefixes := nft.Set{Name: "prefixes", Key: []nft.Field{nft.FieldAddr}, Interval: true}
	pairs := nft.Set{Name: "pairs", Key: []nft.Field{nft.FieldAddr, nft.FieldPort}, Interval: true}
	for name, tt := range map[string]struct {
		set      *nft.Set
		listed   []change.ListedElement
		want     []string // keys
		repeated bool
	}{
		"values": {&addresses, []change.ListedElement{{Key: []byte("\x0a\x00\x00\x01")}, {Key: []byte("\x0a\x00\x00\x02")}},
			[]string{"\x0a\x00\x00\x01", "\x0a\x00\x00\x02"}, false},
		"a value twice": {&addresses, []change.ListedElement{{Key: []byte("\x0a\x00\x00\x01")},
			{Key: []byte("\x0a\x00\x00\x01")}},
			[]string{"\x0a\x00\x00\x01"}, true},
		"ranges that touch": {&prefixes, []change.ListedElement{
			{Key: []byte("\x0a\x00\x02\x00"), End: true}, {Key: []byte("\x0a\x00\x01\x00"), End: true},
			{Key: []byte("\x0a\x00\x01\x00")}, {Key: []byte("\x0a\x00\x00\x00")},
		}, []string{"\x0a\x00\x00\x00\x0a\x00\x00\xff", "\x0a\x00\x01\x00\x0a\x00\x01\xff"}, false},
		"a range to the end": {&prefixes, []change.ListedElement{{Key: []byte("\xe0\x00\x00\x00")}},
			[]string{"\xe0\x00\x00\x00\xff\xff\xff\xff"}, false},
		"concatenations": {&pairs, []change.ListedElement{
			{Key: []byte("\x0a\x00\x00\x00\x00\x50\x00\x00"), KeyEnd: []byte("\x0a\x00\x00\xff\x00\x50\x00\x00")},
			{Key: []byte("\x0b\x00\x00\x00\x00\x50\x00\x00")},
		}, []string{"\x0a\x00\x00\x00\x00\x50\x00\x00\x0a\x00\x00\xff\x00\x50\x00\x00",
			"\x0b\x00\x00\x00\x00\x50\x00\x00\x0b\x00\x00\x00\x00\x50\x00\x00"}, false},
	} {
		listing, want := change.NewListing(nft.IP, tt.set), make(map[string]nft.Element)
		for i := range tt.listed {
			if !listing.Add(&tt.listed[i]) {
				t.Errorf("%s: element %d does not belong to the set", name, i)
			}
		}
		for _, key := range tt.want {
			want[key] = nft.Element{}
		}
		if diff := cmp.Diff(want, listing.Elements()); diff != "" || len(listing.Repeated) > 0 != tt.repeated {
			t.Errorf("%s: repeated %v (-want +got):\n%s", name, listing.Repeated, diff)
		}
	}
	if change.NewListing(nft.IP, &addresses).Add(&change.ListedElement{Key: []byte("\x0a")}) {
		t.Error("a short key belongs to the set")
	}
}
