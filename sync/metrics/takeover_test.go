package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

func TestTakeover(t *testing.T) {
	m := New(Config{Queue: proxysync.NewQueue(), Changes: func() (total, pending tracker.Changes) {
		return total, pending
	}, Unserved: func() int { return 0 }, NodeMissing: func() bool { return false }})
	state := "waiting"
	m.Takeover([]string{"waiting", "done"}, func() string { return state })
	for _, want := range []string{
		`kube_nft_takeover{state="done"} 0
		kube_nft_takeover{state="waiting"} 1
		`,
		`kube_nft_takeover{state="done"} 1
		kube_nft_takeover{state="waiting"} 0
		`,
	} {
		want = "# HELP kube_nft_takeover State of the takeover from kube-proxy: 1 for the current state.\n" +
			"# TYPE kube_nft_takeover gauge\n" + want
		if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "kube_nft_takeover"); err != nil {
			t.Error(err)
		}
		state = "done"
	}
}
