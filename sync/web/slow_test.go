package web

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// pipes is a listener whose connections live in memory, where a bubble's clock rules.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

// dial returns the client's end of a new connection.
func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// Accept waits for the next call of dial.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (p *pipes) Close() error { close(p.closed); return nil }

// Addr returns an address that stands for none.
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// drip writes a text a byte a second, until the server hangs up.
func drip(conn net.Conn, text string) {
	for i := range len(text) {
		if _, err := conn.Write([]byte(text[i : i+1])); err != nil {
			return
		}
		time.Sleep(time.Second) // of the bubble's clock
	}
}

// readBody answers when it has the whole request.
var readBody = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	io.WriteString(w, "done")
})

// flood answers with more than a connection takes unless its client reads.
var flood = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	w.Write(make([]byte, 1<<20))
})

// TestSlowClients holds connections open in every way that costs a client nothing.
func TestSlowClients(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, tt := range []struct {
		name    string
		handler http.Handler
		client  func(net.Conn)
		after   time.Duration // the server hangs up
	}{
		{"says nothing", hello, func(net.Conn) {}, readTimeout},
		{"drips its header", hello, func(c net.Conn) {
			go io.Copy(io.Discard, c)
			drip(c, "GET / HTTP/1.1\r\nX: "+long)
		}, readTimeout},
		{"drips its body", readBody, func(c net.Conn) {
			go io.Copy(io.Discard, c)
			io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
			drip(c, long)
		}, readTimeout},
		{"does not read", flood, func(c net.Conn) { io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }, writeTimeout},
		{"asks no more", hello, func(c net.Conn) {
			go io.Copy(io.Discard, c)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		}, idleTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener, began, closed := newPipes(), time.Now(), time.Duration(-1)
				server := NewServer(tt.handler, true, zap.NewNop())
				server.ConnState = func(_ net.Conn, state http.ConnState) {
					if state == http.StateClosed {
						closed = time.Since(began)
					}
				}
				ended := make(chan error, 1)
				go func() { ended <- server.Serve(listener) }()
				conn := listener.dial()
				go tt.client(conn)
				time.Sleep(time.Hour)
				synctest.Wait()
				if closed < tt.after || closed > tt.after+time.Second { // it lets a last answer arrive
					t.Errorf("the server hung up after %v, want little more than %v", closed, tt.after)
				}
				conn.Close()
				server.Close()
				if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
					t.Errorf("Serve returned %v", err)
				}
			})
		})
	}
}
