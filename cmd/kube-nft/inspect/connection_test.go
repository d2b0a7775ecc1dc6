package inspect

import "testing"

func FuzzParseConnection(f *testing.F) {
	f.Add("10.244.0.9 -> 10.96.0.10:80/tcp")
	f.Add("node [fd96::10]:80/sctp")
	f.Add("::ffff:10.0.0.1 → 10.0.0.2/icmp")
	f.Fuzz(func(t *testing.T, text string) {
		q, err := parseConnection([]string{text})
		if err == nil && q.names != (names{}) {
			return // TestNames
		}
		if err == nil && (!q.destination.IsValid() || q.destination.Zone() != "" || q.protocol == 0 ||
			q.source.IsValid() && q.source.Is4() != q.destination.Is4()) {
			t.Errorf("%q is taken for %+v", text, q)
		}
	})
}
