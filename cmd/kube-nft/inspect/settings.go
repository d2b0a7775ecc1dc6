package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
)

// readSettings works out the settings of a command: those of the kube-nft that runs here, if it can be
// asked and no file is given, under the flags of the command. running is nil without one.
func readSettings(ctx context.Context, reader *config.Reader,
	stderr io.Writer) (c *config.Config, running *config.Running, err error) {
	if running, err = peer.Settings(ctx); err != nil && !errors.Is(err, peer.ErrNone) {
		fmt.Fprintf(stderr, "kube-nft: warning: %v; using flags and defaults\n", err)
	}
	c, err = reader.ReadOver(running)
	return c, running, err
}
