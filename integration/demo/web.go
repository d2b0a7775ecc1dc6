package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// An answer is what a web server says: who it is, and which client it sees.
type answer struct {
	server string
	client netip.Addr
}

// A webServer answers every request with its host's name and the client's address.
type webServer struct{ http.Server }

// serve starts a web server at port 8080 of all addresses of h.
func (h *host) serve() (*webServer, error) {
	var listener net.Listener
	err := h.Do(func() (err error) {
		listener, err = net.Listen("tcp", "[::]:8080")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("web server of %s: %w", h.name, err)
	}
	s := new(webServer)
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := netip.MustParseAddrPort(r.RemoteAddr).Addr().Unmap()
		fmt.Fprintf(w, "%s %s", h.name, client)
	})
	go s.Serve(listener) // returns when the server is closed
	return s, nil
}

// requestTimeout is far more than a request takes here, even on a busy machine.
const requestTimeout = 20 * time.Second

// get sends one request from h to target, an address and a port, over a connection of its
// own.
func (h *host) get(ctx context.Context, target string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", target)
		return err
	})
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if err := checkSYN(conn.(*net.TCPConn)); err != nil {
		return answer{}, err
	}
	if deadline, limited := ctx.Deadline(); limited {
		if err := conn.SetDeadline(deadline); err != nil {
			return answer{}, err
		}
	}
	return exchange(conn, target)
}

// checkSYN returns an error if the connection's SYN was sent again, after a second: a lost one is a failed
// request.
func checkSYN(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	controlErr := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err := errors.Join(err, controlErr); err != nil {
		return err
	}
	if info.Total_retrans > 0 {
		return fmt.Errorf("the SYN to %s was sent again", conn.RemoteAddr())
	}
	return nil
}

// exchange sends a request and reads the answer.
func exchange(conn net.Conn, target string) (answer, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+target+"/", nil)
	if err != nil {
		return answer{}, err
	}
	request.Close = true
	if err := request.Write(conn); err != nil {
		return answer{}, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return answer{}, err
	}
	return parseAnswer(string(body))
}

func parseAnswer(body string) (answer, error) {
	var server, client string
	if _, err := fmt.Sscanf(body, "%s %s", &server, &client); err != nil {
		return answer{}, fmt.Errorf("answer %q: %w", body, err)
	}
	addr, err := netip.ParseAddr(client)
	if err != nil {
		return answer{}, fmt.Errorf("answer %q: %w", body, err)
	}
	return answer{server: server, client: addr}, nil
}
