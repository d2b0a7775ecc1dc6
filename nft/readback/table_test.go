package readback

import (
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

func TestPolicyWords(t *testing.T) {
	for verdict, want := range map[string]string{
		"drop":                                  "unknown: drop",
		"goto reject-new":                       "reject (no endpoint)",
		"goto source-ranges-17-reject-new":      "reject (no endpoint), ranges",
		"goto cluster-3":                        "all endpoints",
		"goto cluster-local-1":                  "local endpoints",
		"goto external-7":                       "all endpoints",
		"goto cluster-maglev-503":               "all endpoints, maglev",
		"goto external-local-maglev-ip-503-1":   "external local, maglev by source IP",
		"goto cluster-maglev-maglev-503":        "unknown: goto cluster-maglev-maglev-503",
		"goto cluster-maglev-list-17":           "unknown: goto cluster-maglev-list-17",
		"goto external-local-7-2":               "external local",
		"goto external-local-7-0":               "external: drop (no local endpoint)",
		"goto source-ranges-17-external-1":      "all endpoints, ranges",
		"goto node-port-local-3-1":              "external local",
		"goto node-port-local-affinity-17-none": "external: drop (no local endpoint)",
		"goto cluster-03":                       "unknown: goto cluster-03",
		"goto elsewhere":                        "unknown: goto elsewhere",
		"goto source-ranges-external-1":         "unknown: goto source-ranges-external-1",
		"goto source-ranges-017-external-1":     "unknown: goto source-ranges-017-external-1",
		"accept":                                "unknown: accept",
		"queue":                                 "unknown: verdict 3",
	} {
		if got := fields(verdictIn(verdict), 0, nil); got != want {
			t.Errorf("%q: %q, want %q", verdict, got, want)
		}
	}
	if got, want := fields(nft.Goto("cluster-affinity-17"), 3*time.Hour, nil), "all endpoints, affinity 3h"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := fields(nft.Goto("cluster-4"), 0, []int{1, 2}), "all endpoints, weighted"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// fields are those of a frontend in a table without chains.
func fields(verdict nft.Verdict, affinity time.Duration, places []int) string {
	s := Frontend{Verdict: verdict, Affinity: affinity, Cluster: List{Places: places}}
	if p, ours := layout.PolicyOf(verdict); ours {
		s.Hash = Table{Table: nft.NewTable(nft.IP)}.hash(p)
	}
	return s.policyWords()
}

// verdictIn reads a verdict in nft's words.
func verdictIn(words string) nft.Verdict {
	switch word, chain, _ := strings.Cut(words, " "); word {
	case "goto":
		return nft.Goto(chain)
	case "accept":
		return nft.Accept
	case "queue":
		return nft.Verdict{Kind: 3}
	default:
		return nft.Drop
	}
}
