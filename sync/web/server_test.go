package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// hello answers every request that it can read.
var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	if _, err := io.ReadAll(r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	io.WriteString(w, "hello")
})

// occupy listens on a free port of the loopback address.
func occupy(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// exchange sends a request as it stands and returns the answer.
func exchange(t *testing.T, address, request string) (code int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go io.WriteString(conn, request)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

const get = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

func TestServerBindsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := occupy(t)
		var failures []string
		core, lines := observer.New(zap.DebugLevel)
		server := Server{
			Name: "health", Address: taken.Addr().String(), Flag: "--healthz-bind-address", Handler: hello,
			Failed: func(err error) { failures = append(failures, err.Error()) },
			Log:    zap.New(core),
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- server.Run(ctx) }()
		time.Sleep(31 * time.Minute) // of the bubble's clock
		synctest.Wait()
		want := fmt.Sprintf("serve health on %s: address already in use; another process has this port, perhaps kube-proxy "+
			"or another kube-nft: stop it or set --healthz-bind-address", taken.Addr())
		if len(failures) != 2 || failures[0] != want || failures[1] != want {
			t.Errorf("after half an hour: %q, want twice %q", failures, want)
		}
		taken.Close()
		time.Sleep(rebindInterval) // time stands still while it waits for connections
		for conn, err := net.Dial("tcp", server.Address); ; conn, err = net.Dial("tcp", server.Address) {
			if err == nil {
				conn.Close()
				break
			}
		}
		if code, body := exchange(t, server.Address, get); code != 200 || body != "hello" {
			t.Errorf("got %d %q", code, body)
		}
		var logged []string
		for _, line := range lines.All() {
			logged = append(logged, line.Message)
		}
		const failure = "HTTP server cannot serve its address"
		if want := []string{failure, failure, "HTTP server listens"}; !slices.Equal(logged, want) {
			t.Errorf("logged %q, want %q", logged, want)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		_, err := net.Dial("tcp", server.Address)
		for errors.Is(err, syscall.ECONNRESET) { // the kernel is about to close the socket
			_, err = net.Dial("tcp", server.Address)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("after the end: %v, want a refused connection", err)
		}
	})
}

// TestServerExpected: an address that another process may have for now is no failure, not even with
// HardFail; when that ends, it is one.
func TestServerExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var expected atomic.Bool
		expected.Store(true)
		failed := 0
		server := Server{
			Name: "health", Address: occupy(t).Addr().String(), Flag: "--healthz-bind-address", Handler: hello, HardFail: true,
			Expected: expected.Load, Failed: func(error) { failed++ }, Log: zap.NewNop(),
		}
		ended := make(chan error, 1)
		go func() { ended <- server.Run(t.Context()) }()
		time.Sleep(time.Hour) // of the bubble's clock
		synctest.Wait()
		if failed != 0 || len(ended) != 0 {
			t.Errorf("while it is expected: told %d times, ended %d times", failed, len(ended))
		}
		expected.Store(false)
		if err := <-ended; err == nil || failed != 1 {
			t.Errorf("told %d times, got %v", failed, err)
		}
	})
}

func TestServerHardFail(t *testing.T) {
	taken := occupy(t)
	for _, tt := range []struct{ address, want string }{
		{taken.Addr().String(),
			"address already in use; another process has this port, perhaps kube-proxy or another kube-nft: stop it or set " +
				"--metrics-bind-address"},
		{"192.0.2.1:10249",
			"cannot assign requested address; no interface of this node has this address: set --metrics-bind-address to one " +
				"that it has"},
	} {
		failed := 0
		server := Server{
			Name: "metrics", Address: tt.address, Flag: "--metrics-bind-address", Handler: hello, HardFail: true,
			Failed: func(error) { failed++ }, Log: zap.NewNop(),
		}
		want := "serve metrics on " + tt.address + ": " + tt.want
		if err := server.Run(t.Context()); err == nil || err.Error() != want || failed != 1 {
			t.Errorf("told %d times, got %v, want %s", failed, err, want)
		}
	}
}

func TestServerLimits(t *testing.T) {
	listener := occupy(t)
	server := NewServer(hello, true, zap.NewNop())
	go server.Serve(listener)
	defer server.Close()
	address := listener.Addr().String()
	body := strings.Repeat("x", maxBodyBytes+1)
	for _, tt := range []struct {
		name, request string
		code          int
	}{
		{"small", get, 200},
		{"long header", "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 2*maxHeaderBytes) + "\r\n\r\n", 431},
		{"long body", fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body), 413},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if code, body := exchange(t, address, tt.request); code != tt.code {
				t.Errorf("got %d %q, want %d", code, body, tt.code)
			}
		})
	}
}
