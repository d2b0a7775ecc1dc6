package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"
)

// The Services of the clients: steady has all servers as endpoints, rolling two of them,
// which change.
const (
	steady  = "steady"
	rolling = "rolling"

	servers     = 8
	serverPort  = 8080
	servicePort = 80
)

var (
	steadyIP  = netip.MustParseAddr("10.96.0.10")
	rollingIP = netip.MustParseAddr("10.96.0.11")
)

// serve answers over TCP and UDP at addr with addr.
func serve(addr netip.Addr) (closers []io.Closer, err error) {
	at := netip.AddrPortFrom(addr, serverPort).String()
	listener, err := net.Listen("tcp4", at)
	if err != nil {
		return nil, err
	}
	packets, err := net.ListenPacket("udp4", at)
	if err != nil {
		return []io.Closer{listener}, err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, addr.String()) // the client may be gone
			_ = conn.Close()
		}
	}()
	go func() {
		var buf [64]byte
		for {
			_, client, err := packets.ReadFrom(buf[:])
			if err != nil {
				return
			}
			_, _ = packets.WriteTo([]byte(addr.String()), client) // the client may be gone
		}
	}()
	return []io.Closer{listener, packets}, nil
}

// exchangeTimeout bounds one exchange of a client.
const exchangeTimeout = 500 * time.Millisecond

// A client talks to a Service: over new connections with TCP, over one lasting socket with UDP.
type client struct {
	network string // tcp4 or udp4
	to      netip.AddrPort
	socket  net.Conn // with UDP

	// Owned by run while it runs.
	answers, lost int
	answered      time.Time     // last
	outage        time.Duration // the longest so far
}

func newClient(network string, service netip.Addr) (*client, error) {
	c := &client{network: network, to: netip.AddrPortFrom(service, servicePort), answered: time.Now()}
	if network == "tcp4" {
		return c, nil
	}
	var err error
	c.socket, err = net.Dial(network, c.to.String())
	return c, err
}

// exchange asks once and returns who answered.
func (c *client) exchange(ctx context.Context) (netip.Addr, error) {
	conn := c.socket
	if c.network == "tcp4" {
		dialer := net.Dialer{Timeout: exchangeTimeout}
		var err error
		if conn, err = dialer.DialContext(ctx, c.network, c.to.String()); err != nil {
			return netip.Addr{}, err
		}
		defer conn.Close()
	} else if _, err := conn.Write([]byte("?")); err != nil {
		return netip.Addr{}, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return netip.Addr{}, err
	}
	var buf [64]byte
	n, err := conn.Read(buf[:])
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(string(buf[:n]))
}

// pause is what a client waits between two exchanges.
const pause = 10 * time.Millisecond

// run talks until ctx ends.
func (c *client) run(ctx context.Context) {
	c.answered = time.Now() // what was before is no outage
	for ctx.Err() == nil {
		_, err := c.exchange(ctx)
		if ctx.Err() == nil {
			c.note(err == nil)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// note counts an exchange.
func (c *client) note(answered bool) {
	if !answered {
		c.lost++
	} else {
		c.answers++
	}
	c.outage = max(c.outage, time.Since(c.answered))
	if answered {
		c.answered = time.Now()
	}
}

// check asks some times, and wants each answer from one of the endpoints. An
// answer that came too late for the question before is passed over.
func (c *client) check(ctx context.Context, endpoints []netip.Addr) error {
	const times = 20
	for i := range times {
		from, err := c.exchange(ctx)
		if i == 0 && c.socket != nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s %s does not answer in a calm: %w", c.network, c.to, err)
		}
		if !slices.Contains(endpoints, from) {
			return fmt.Errorf("%s %s is answered by %s, which is none of its endpoints, %v", c.network, c.to, from, endpoints)
		}
	}
	return nil
}
