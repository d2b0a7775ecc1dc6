package conntrack

import (
	"net/netip"
	"testing"

	"github.com/kube-nft/kube-nft/tracker"
)

// TestDeleteRoundTrip decodes what identifies a flow in a deletion.
func TestDeleteRoundTrip(t *testing.T) {
	for _, want := range mixed() {
		want = Flow{Family: want.Family, Original: want.Original, Zone: 9, ID: 0x01020304}
		if got, err := decode(encodeDelete(&want)); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestDecodeMalformed(t *testing.T) {
	f := mixed()[0]
	good := encodeDelete(&f)
	for name, data := range map[string][]byte{
		"empty":                {},
		"no attributes header": {2, 0, 0, 0, 8},
		"attribute too short":  {2, 0, 0, 0, 3, 0, 1, 0},
		"attribute beyond end": {2, 0, 0, 0, 9, 0, 1, 0, 1, 2, 3, 4},
		"status of two bytes":  {2, 0, 0, 0, 6, 0, ctaStatus, 0, 1, 2, 0, 0},
		"cut within the tuple": good[:20],
		"IPv6 address of four": {2, 0, 0, 0, 16, 0, ctaTupleOrig, 0x80, 12, 0, ctaTupleIP, 0x80, 8, 0, ctaIPv6Source, 0,
			1, 2, 3, 4},
		"protocol of two bytes": {2, 0, 0, 0, 16, 0, ctaTupleOrig, 0x80, 12, 0, ctaTupleProto, 0x80, 6, 0, ctaProtoNumber, 0,
			1, 2, 0, 0},
	} {
		if got, err := decode(data); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

func TestBypassesOfConntrack(t *testing.T) {
	f := flow(tracker.TCP, client, "10.96.0.10:53", "10.96.0.10:53", 0)
	for state := range TCPState(12) {
		f.TCPState = state
		if got := f.Bypasses(); got != (state == SYNSent) {
			t.Errorf("TCP state %d: %t", state, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, flow := range mixed() {
		f.Add(encodeDelete(&flow))
		f.Add(encodeCreation(&flow))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, err := decode(data)
		if err != nil {
			return
		}
		_ = stale(&flow, desired)
		_ = flow.Original.String()
		for _, a := range []netip.Addr{flow.Original.Source.Addr(), flow.Reply.Source.Addr()} {
			if a.Zone() != "" || a.IsValid() && !a.Is4() && !a.Is6() {
				t.Errorf("address %s", a)
			}
		}
	})
}
