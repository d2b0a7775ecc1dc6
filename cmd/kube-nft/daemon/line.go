package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/kernel"
)

// A line connects two processes, which write lines to each other and pass sockets.
type line struct {
	*net.UnixConn
	lines  *bufio.Reader
	socket *os.File // came last; nil without
}

// newLine returns a line that reads up to longest bytes at a time.
func newLine(conn *net.UnixConn, longest int) *line {
	l := &line{UnixConn: conn}
	l.lines = bufio.NewReaderSize(l, longest)
	return l
}

// Read implements io.Reader. It keeps the last socket that comes along.
func (l *line) Read(p []byte) (int, error) {
	control := make([]byte, unix.CmsgSpace(4))
	n, controlLen, _, _, err := l.ReadMsgUnix(p, control)
	switch {
	case errors.Is(err, io.EOF):
		return 0, io.EOF
	case err != nil:
		return 0, err
	}
	messages, _ := unix.ParseSocketControlMessage(control[:controlLen])
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i]) // other messages have none
		for _, fd := range fds {
			l.drop()
			l.socket = os.NewFile(uintptr(fd), "socket")
		}
	}
	return n, nil
}

// drop closes the socket that came last.
func (l *line) drop() {
	if l.socket != nil {
		l.socket.Close()
		l.socket = nil
	}
}

// proof returns an error unless the process at the other end proves that it has CAP_NET_ADMIN in our
// network namespace. ready says that it has written requestReady meanwhile.
func (l *line) proof() (ready bool, err error) {
	proof, err := kernel.NewProof()
	if err != nil {
		return false, err
	}
	defer proof.Close()
	if _, _, err := l.WriteMsgUnix([]byte(requestProof+"\n"), proof.Rights(), nil); err != nil {
		return false, err
	}
	for {
		switch answer, err := l.lines.ReadSlice('\n'); {
		case err != nil:
			return false, fmt.Errorf("no proof of CAP_NET_ADMIN: %w", err)
		case string(answer) == requestReady+"\n":
			ready = true
		case string(answer) != answerProof+"\n" || !proof.Given(kernel.Requester):
			return false, errors.New("the request needs CAP_NET_ADMIN in this network namespace")
		default:
			return ready, nil
		}
	}
}

// prove gives the proof that the process at the other end wants.
func (l *line) prove() error {
	if l.socket == nil {
		return errors.New("a request for a proof without a socket for it")
	}
	socket := l.socket
	l.socket = nil
	if err := kernel.Prove(socket, kernel.Requester); err != nil {
		return fmt.Errorf("request to kube-nft: %w (needs CAP_NET_ADMIN)", err)
	}
	_, err := fmt.Fprintln(l, answerProof)
	return err
}
