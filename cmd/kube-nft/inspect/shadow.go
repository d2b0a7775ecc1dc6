package inspect

import (
	"fmt"
	"time"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/words"
)

// shadows reports whether the daemon that answers is in the shadow mode.
func (d *DaemonStatus) shadows() bool { return d.Status != nil && d.Shadow != nil }

// shadowRows is for people what the shadow mode found.
func shadowRows(s *peer.Shadow, now time.Time) (rows [][]string) {
	compared := "never"
	if !s.Compared.IsZero() {
		compared = fmt.Sprintf("%s, %s ago; %s of kube-proxy's; it took %s",
			s.Compared.UTC().Truncate(time.Second).Format(time.RFC3339), now.Sub(s.Compared).Round(time.Second),
			words.Plural(s.Frontends, "frontend"), time.Duration(s.Seconds*float64(time.Second)).Round(time.Millisecond))
	}
	rows = append(rows, []string{"Compared", compared})
	if s.Problem != "" {
		rows = append(rows, []string{"  not now", nft.Visible(s.Problem)})
	}
	rows = append(rows, []string{"Differences", fmt.Sprintf("%d; %d more may pass with kube-proxy's next sync",
		s.Differences, s.Passing)})
	for _, d := range s.First {
		rows = append(rows, []string{"", nft.Visible(d.String())})
	}
	if more := s.Differences - len(s.First); more > 0 {
		rows = append(rows, []string{"", fmt.Sprintf("and %d more", more)})
	}
	return rows
}
