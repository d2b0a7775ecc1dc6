// Package peer connects commands with the daemon that programs a network namespace.
//
// A command calls Settings or ReadStatus. Running says whether a daemon programs this network
// namespace, WaitForEnd waits until none does. The daemon has a Turn: Await before it programs, End
// when it does not write any more.
//
// The right to program is a lock of the kernel (kernel.Lock). Questions go over a socket file in a
// directory that only root, or the daemon's own user, can enter: a process that can open the file may ask.
// docs/decisions/039-one-door.md has the reasons.
package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// Directory holds the socket files.
const Directory = "/run/kube-nft"

// directories lists where the socket file may be. A user who cannot write to /run, as in a user
// namespace of his own, has it in the directory of his session.
func directories() []string {
	list := []string{Directory}
	if session := os.Getenv("XDG_RUNTIME_DIR"); session != "" {
		list = append(list, filepath.Join(session, "kube-nft"))
	}
	return list
}

// A Role says which of the daemons of a network namespace a socket file belongs to.
type Role string

// The roles.
const (
	Programs Role = "sock"   // has the lock
	Waits    Role = "next"   // waits for the lock; of several daemons the one that was started last
	Shadows  Role = "shadow" // compares, without the lock
)

// fileName is the name of the socket file: daemons in different network namespaces may share the
// directory, so the name has the number of the namespace, as readlink /proc/self/ns/net shows it.
func (r Role) fileName() (string, error) {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &stat); err != nil {
		return "", fmt.Errorf("number of this network namespace: %w", err)
	}
	return "net-" + strconv.FormatUint(stat.Ino, 10) + "." + string(r), nil
}

// dial connects to the daemon of a role.
func (r Role) dial(ctx context.Context) (conn net.Conn, err error) {
	name, err := r.fileName()
	if err != nil {
		return nil, err
	}
	for _, directory := range directories() {
		var dialer net.Dialer
		conn, dialErr := dialer.DialContext(ctx, "unix", filepath.Join(directory, name))
		if dialErr == nil {
			return conn, nil
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = dialErr
		}
	}
	return nil, err
}

// ErrNone says that no daemon programs this network namespace, or that none waits.
var ErrNone = errors.New("no kube-nft programs this network namespace")

// Limits of an answer.
const (
	patience  = 3 * time.Second
	maxAnswer = 4 << 20 // the metrics of a node whose namespaces are many
)

// ReadSettings works out the settings of a command: those of the daemon that programs this network namespace, if it
// answers and the command line names no file, under the flags of the command. running is nil without a daemon. It warns
// of what has no effect.
func ReadSettings(ctx context.Context, reader *config.Reader,
	stderr io.Writer) (c *config.Config, running *config.Running, err error) {
	if running, err = Settings(ctx); err != nil && !errors.Is(err, ErrNone) {
		fmt.Fprintf(stderr, "kube-nft: warning: %v; using flags and defaults\n", err)
	}
	if c, err = reader.ReadOver(running); err != nil {
		return nil, nil, err
	}
	for _, notice := range c.Notices {
		fmt.Fprintln(stderr, "kube-nft: warning: "+notice)
	}
	return c, running, nil
}

// Settings returns the settings of the daemon that programs this network namespace, or of one in the shadow mode, or
// ErrNone.
func Settings(ctx context.Context) (*config.Running, error) {
	running, root, err := ask[config.Running](ctx, pathSettings, Programs, Shadows)
	if err == nil {
		running.Root = root
	}
	return running, err
}

// ReadStatus returns what the daemon of the first of these roles that there is says of itself, or ErrNone.
func ReadStatus(ctx context.Context, roles ...Role) (*Status, error) {
	status, _, err := ask[Status](ctx, pathStatus, roles...)
	return status, err
}

// Metrics returns the metrics of the daemon that programs, or is in the shadow mode, as a scrape would; or ErrNone.
func Metrics(ctx context.Context) (string, error) {
	text, _, err := read(ctx, pathMetrics, Programs, Shadows)
	return string(text), err
}

// ask is read, and decodes the answer.
func ask[T any](ctx context.Context, path string, roles ...Role) (answer *T, root string, err error) {
	text, root, err := read(ctx, path, roles...)
	if err != nil {
		return nil, "", err
	}
	answer = new(T)
	if err := json.Unmarshal(text, answer); err != nil {
		return nil, "", unanswered(err)
	}
	return answer, root, nil
}

// read asks the daemon of the first of these roles that there is, and returns its answer and rootOf its connection.
func read(ctx context.Context, path string, roles ...Role) (text []byte, root string, err error) {
	for _, role := range roles {
		if text, root, err = role.read(ctx, path); !errors.Is(err, ErrNone) {
			break
		}
	}
	return text, root, err
}

// read connects before the request: only the calling thread is in the network namespace whose daemon is asked.
func (r Role) read(ctx context.Context, path string) (text []byte, root string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := r.dial(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, "", unanswered(ctx.Err())
	case err != nil:
		return nil, "", notReached(r, err)
	}
	defer conn.Close()
	root = rootOf(conn) // HTTP closes the connection
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kube-nft"+path, nil)
	if err != nil {
		return nil, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, "", unanswered(err)
	}
	defer response.Body.Close()
	text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case len(text) > maxAnswer:
		return nil, "", fmt.Errorf("answer of the running kube-nft: longer than %d MiB", maxAnswer>>20)
	case response.StatusCode != http.StatusOK: // which says that something is wrong, whatever the text
		return nil, "", fmt.Errorf("the running kube-nft: %s", nft.Visible(strings.TrimSpace(string(text))))
	case err != nil:
		return nil, "", unanswered(err)
	}
	return text, root, nil
}

// rootOf returns where the files of the daemon at the other end of a connection are, if it has a file system of its
// own, as in a pod; empty if it has not, or if its process cannot be seen from here.
func rootOf(conn net.Conn) string {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return ""
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return ""
	}
	var process *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		process, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if controlErr != nil || err != nil || process.Pid == 0 { // 0: in a PID namespace that this process does not see
		return ""
	}
	root := fmt.Sprintf("/proc/%d/root", process.Pid)
	theirs, err := os.Stat(root)
	if err != nil {
		return ""
	}
	if ours, err := os.Stat("/"); err != nil || os.SameFile(theirs, ours) {
		return ""
	}
	return root
}

// unanswered says why a daemon that was reached has not answered.
func unanswered(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the running kube-nft does not answer within %s", patience)
	}
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err // the rest repeats the request
	}
	return fmt.Errorf("answer of the running kube-nft: %w", err)
}

// notReached says why a daemon was not reached, and what to do about it.
func notReached(role Role, err error) error {
	switch {
	case role == Programs && kernel.Locked():
		return fmt.Errorf("a kube-nft programs this network namespace, but this process does not reach it: %w; "+
			"run the command as root, in the pod of kube-nft (kubectl exec) or where the node's %s is", err, Directory)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("reach the running kube-nft: %w; run the command as root", err)
	}
	return ErrNone
}
