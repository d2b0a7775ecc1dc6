package migrate

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nft/kube-nft/nft/legacy"
)

// TestKnownClientsOfRepeatedCommits: commits that are repeated at once use one reading.
func TestKnownClientsOfRepeatedCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := func(client string) *legacy.Inventory {
			entry := legacy.AffinityEntry{Client: netip.MustParseAddr(client), Endpoint: netip.MustParseAddrPort("10.0.0.1:80")}
			return &legacy.Inventory{Parts: []legacy.Part{{Backend: legacy.ProxyTables, Entries: []legacy.AffinityEntry{entry}}}}
		}
		takeover := &Takeover{inventory: found("192.0.2.1")}
		check := func(client string) {
			t.Helper()
			got, err := takeover.KnownClients(t.Context())
			if err != nil || len(got) != 1 || got[0].Client.String() != client {
				t.Errorf("%v, %v, want the client %s", got, err, client)
			}
		}
		check("192.0.2.1")
		takeover.inventory = found("192.0.2.2")
		time.Sleep(6 * time.Second)
		check("192.0.2.1")
		time.Sleep(knownClientsAge)
		check("192.0.2.2")
	})
}
