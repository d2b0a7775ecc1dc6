package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

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
started again. When no kube-nft runs there is nothing to release: then nft can change and
delete the tables.`,
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
	switch answer = strings.TrimSpace(answer); {
	case err != nil:
		return fmt.Errorf("kube-nft (%s) did not answer: %w; is it root that asks?", other, err)
	case answer != answerDone:
		return fmt.Errorf("kube-nft (%s): %s", other, answer)
	}
	_, err = fmt.Fprintln(stdout, "the tables belong to nobody now")
	return err
}
