package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A question is one line: the numbers of the client and of the question, and the name of the
// Service. The answer is one line, too: the number of the question and the server's address.
const (
	questionFormat = "%d %d %s\n"
	answerFormat   = "%d %s\n"
)

// desks are the servers of all pods. They know whose questions each may get.
type desks struct {
	wrong   func(error) // called for a question that came to another Service's server
	closers []io.Closer

	mu     sync.Mutex
	latest map[int]delivery // by client
}

// A delivery says where a question arrived.
type delivery struct {
	question int
	at       netip.Addr
}

// longest line and longest silence of a client.
const (
	lineLen = 128
	silence = time.Minute
)

// newDesks opens the servers: TCP at every pod's address, UDP at the addresses of the Services that
// stay.
func newDesks(wrong func(error)) (*desks, error) {
	d := &desks{wrong: wrong, latest: make(map[int]delivery)}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", lab.EndpointPort))
	if err != nil {
		return d, err
	}
	d.closers = append(d.closers, listener)
	go d.accept(listener)
	for i := range stays {
		for f := range families {
			for n := range servers {
				if err := d.open(families[f].serverOf(i, n)); err != nil {
					return d, err
				}
			}
		}
	}
	return d, nil
}

// open answers over UDP at an address.
func (d *desks) open(at netip.Addr) error {
	packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, lab.EndpointPort)))
	if err != nil {
		return err
	}
	d.closers = append(d.closers, packets)
	go func() {
		var buf [lineLen]byte
		for {
			n, client, err := packets.ReadFrom(buf[:])
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if answer := d.answer(string(buf[:n]), at); err == nil {
				_, _ = packets.WriteTo([]byte(answer), client) // the client may be gone
			}
		}
	}()
	return nil
}

// accept answers over TCP.
func (d *desks) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go d.converse(conn)
		}
	}
}

// converse answers until the client is gone or silent.
func (d *desks) converse(conn net.Conn) {
	defer conn.Close()
	at := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	lines := bufio.NewReaderSize(conn, lineLen)
	for {
		_ = conn.SetDeadline(time.Now().Add(silence)) // fails on a closed connection, as reading does
		question, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, d.answer(question, at)); err != nil {
			return
		}
	}
}

// answer looks at a question that came to an address.
func (d *desks) answer(question string, at netip.Addr) string {
	var client, number int
	var service string
	if _, err := fmt.Sscanf(question, questionFormat, &client, &number, &service); err != nil {
		d.wrong(fmt.Errorf("%s was asked %q: %w", at, question, err))
		return ""
	}
	if served := servedBy(at); served != service {
		d.wrong(fmt.Errorf("a question for Service %s came to %s, a server of %s", service, at, served))
	}
	d.mu.Lock()
	d.latest[client] = delivery{question: number, at: at}
	d.mu.Unlock()
	return fmt.Sprintf(answerFormat, number, at)
}

// arrival returns where a client's latest question arrived, if it did.
func (d *desks) arrival(client, question int) (at netip.Addr, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	latest := d.latest[client]
	return latest.at, latest.question == question && latest.at.IsValid()
}

func (d *desks) close() (err error) {
	for _, closer := range d.closers {
		err = errors.Join(err, closer.Close())
	}
	return err
}
