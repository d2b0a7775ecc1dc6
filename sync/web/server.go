// Package web runs the HTTP servers of the daemon. Fill in a Server and run it:
//
//	server := &web.Server{Name: "metrics", Address: "127.0.0.1:10249", Flag: "--metrics-bind-address",
//		Handler: handler, Log: log}
//	err := server.Run(ctx)
//
// For listeners of your own, use NewServer with Listen, and Limit of a Pool. A Page answers as text or as an object of
// Kubernetes; Status.Page and FlagsPage are /statusz and /flagz. A LevelFlag changes the log level.
//
// Every host in the node's network reaches these servers without authentication. So answers are small, and the size,
// duration and number of requests are bounded. A request changes nothing but the log level, and that only if a flag
// allows it.
package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// Limits of every connection. A CPU profile takes longer than writeTimeout; net/http/pprof
// extends it for its own answers.
const (
	readTimeout    = 5 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 15 * time.Second
	maxHeaderBytes = 8 << 10
	maxBodyBytes   = 64 << 10
	connections    = 128 // of a Server; about 20 KiB each
)

const (
	// rebindInterval is the pause before another try at an address that another process has. It is short,
	// because health checks have no answer from that process's end to the next try. reportInterval is
	// the time after which the same failure is reported again: events are kept for an hour.
	rebindInterval = 20 * time.Millisecond
	reportInterval = 30 * time.Minute
	// Farewell is how long requests may go on when a server ends.
	Farewell = 500 * time.Millisecond
)

// NewServer returns a server of handler with the limits of this package, for the caller's own
// listeners. Probes need no connection that stays open after the answer.
func NewServer(handler http.Handler, keepAlive bool, log *zap.Logger) *http.Server {
	server := &http.Server{
		Handler:           http.MaxBytesHandler(handler, maxBodyBytes),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
	server.SetKeepAlivesEnabled(keepAlive)
	return server
}

// A Server is one address with its handler.
type Server struct {
	Name    string // for logs and errors, e.g. "health"
	Address string // host:port; the host of [::] and 0.0.0.0 both stand for both families
	Flag    string // the setting of Address, for errors
	Handler http.Handler
	// KeepAlive lets a client send several requests over one connection.
	KeepAlive bool
	// HardFail ends Run with an error if Address cannot be bound; otherwise Run tries again.
	HardFail bool
	// Expected reports whether kube-proxy may still have Address: then a failure to bind is neither reported
	// nor fatal. It may be nil.
	Expected func() bool
	// Failed is called with a failure to bind when it begins, and every half hour while it lasts. It may be nil.
	Failed func(error)
	Log    *zap.Logger

	tried atomic.Bool
}

// Tried reports whether the server listens, or failed to.
func (s *Server) Tried() bool { return s.tried.Load() }

// Run serves until ctx ends, and then lets requests finish for up to Farewell.
func (s *Server) Run(ctx context.Context) error {
	reported := quota.Once{Interval: reportInterval}
	for {
		err := s.serve(ctx, &reported)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		expected := s.Expected != nil && s.Expected()
		switch {
		case !reported.Report(fmt.Sprint(expected, err)):
		case expected:
			s.Log.Info("HTTP server waits: its address is in use; retrying", zap.Error(err))
		default:
			if s.Failed != nil {
				s.Failed(err)
			}
			s.Log.Error("HTTP server cannot serve its address", zap.Error(err), zap.Bool("retried", !s.HardFail))
		}
		if s.HardFail && !expected {
			return err
		}
		if !retry.Pause(ctx, rebindInterval) {
			return nil
		}
	}
}

// serve binds the address and serves until ctx ends. What was reported is over when it listens.
func (s *Server) serve(ctx context.Context, reported *quota.Once) error {
	listener, err := Listen(ctx, "tcp", s.Address)
	s.tried.Store(true)
	if err != nil {
		return s.bindError(err)
	}
	reported.Over()
	s.Log.Info("HTTP server listens", zap.String("name", s.Name), zap.Stringer("address", listener.Addr()))
	server := NewServer(s.Handler, s.KeepAlive, s.Log)
	pool := NewPool(connections)
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	err = server.Serve(pool.Limit(listener))
	listener.Close()
	if ctx.Err() != nil {
		server.SetKeepAlivesEnabled(false)
		pool.Drain()
		server.Close()
		return nil
	}
	return fmt.Errorf("serve %s on %s: %w", s.Name, s.Address, err)
}

// bindError says why the address cannot be served, and how to mend that.
func (s *Server) bindError(err error) error {
	remedy := "set " + s.Flag
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		remedy = fmt.Sprintf("another process has this port, perhaps kube-proxy or another kube-nft: stop it or %s", remedy)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		remedy = fmt.Sprintf("no interface of this node has this address: %s to one that it has", remedy)
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok { // leaves out what net.OpError and os.SyscallError repeat
		err = errno
	}
	return fmt.Errorf("serve %s on %s: %w; %s", s.Name, s.Address, err, remedy)
}
