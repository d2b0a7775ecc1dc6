package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newRelease() *cobra.Command {
	return &cobra.Command{
		Use:   "release",
		Short: "Make the running kube-nft give up the ownership of its tables",
		Long: `With --table-ownership=auto nobody but the running kube-nft can change its tables;
nft gets "Operation not permitted". release asks the kube-nft that runs in this network
namespace to replace them by tables of the same content that belong to nobody, in one
transaction. It goes on repairing what others change, and owns its tables again when it is
started again. Tables that belong to nobody already stay as they are. When no kube-nft runs
there is nothing to release: then nft can change and delete the tables.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return release(cmd.Context(), cmd.OutOrStdout()) },
	}
}

func release(ctx context.Context, stdout io.Writer) error {
	other, err := findHolder()
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return errors.New("no kube-nft programs this network namespace: nft can change what there is")
	case err != nil:
		return fmt.Errorf("reach the running kube-nft: %w", err)
	}
	defer other.conn.Close()
	stop := context.AfterFunc(ctx, func() { other.conn.Close() })
	defer stop()
	if !trusted(&other.Ucred) {
		return fmt.Errorf("a process of user %d poses as kube-nft (%s)", other.Uid, other)
	}
	if _, err := fmt.Fprintln(other.conn, requestRelease); err != nil {
		return fmt.Errorf("ask kube-nft (%s): %w", other, err)
	}
	answer, err := bufio.NewReader(other.conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("kube-nft (%s) did not answer: %w; is it root that asks?", other, err)
	}
	switch answer = strings.TrimSpace(answer); answer {
	case answerDone:
		_, err = fmt.Fprintln(stdout, "the tables belong to nobody now")
	case answerAlready:
		_, err = fmt.Fprintln(stdout, "the tables belong to nobody already")
	default:
		err = fmt.Errorf("kube-nft (%s): %s", other, answer)
	}
	return err
}

// A releaser is the daemon's part: it gives up what there is to give up, once.
type releaser struct {
	disown func(context.Context) error

	mu    sync.Mutex
	owned bool
}

// release returns the answer to a request.
func (r *releaser) release(ctx context.Context) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.owned {
		return answerAlready
	}
	if err := r.disown(ctx); err != nil {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.owned = false
	return answerDone
}
