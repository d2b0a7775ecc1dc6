package migrate

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/services"
)

// TestSeedsOfRepeatedCommits: the list is read once for a row of commits that others overtake, and
// the time that is left goes on meanwhile.
func TestSeedsOfRepeatedCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entry := func(client string, left time.Duration) legacy.AffinityEntry {
			return legacy.AffinityEntry{Client: netip.MustParseAddr(client), Endpoint: netip.MustParseAddrPort("10.0.0.1:80"), Left: left}
		}
		found := func(entries ...legacy.AffinityEntry) *legacy.Inventory {
			return &legacy.Inventory{Parts: []legacy.Part{{Backend: legacy.ProxyTables, Entries: entries}}}
		}
		takeover := &Takeover{inventory: found(entry("192.0.2.1", time.Hour), entry("192.0.2.2", 5*time.Second))}
		check := func(want ...services.Seed) {
			t.Helper()
			got, err := takeover.Seeds(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		check(services.Seed(entry("192.0.2.1", time.Hour)), services.Seed(entry("192.0.2.2", 5*time.Second)))
		takeover.inventory = found(entry("192.0.2.3", time.Hour))
		time.Sleep(6 * time.Second)
		check(services.Seed(entry("192.0.2.1", time.Hour-6*time.Second)))
		time.Sleep(seedsAge)
		check(services.Seed(entry("192.0.2.3", time.Hour)))
	})
}
