// Package web runs the HTTP servers of the daemon.
//
// The node's network reaches these servers without authentication: answers are small, requests are
// bounded in size and in time, and nothing changes state.
package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// Limits of every connection. A CPU profile takes longer than writeTimeout; net/http/pprof
// extends it for its own answers.
const (
	readTimeout    = 5 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	maxBodyBytes   = 64 << 10
)

const (
	// rebindInterval is the pause before another try at an address that could not be bound.
	rebindInterval = 5 * time.Second
	// farewell is how long requests may go on when a server ends.
	farewell = time.Second
)

// NewServer returns a server of handler with the limits of this package, for the caller's own
// listeners.
func NewServer(handler http.Handler, log *zap.Logger) *http.Server {
	return &http.Server{
		Handler:           http.MaxBytesHandler(handler, maxBodyBytes),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
}

// A Server is one address with its handler.
type Server struct {
	Name    string // for logs and errors, e.g. "health"
	Address string // host:port; the host of [::] and 0.0.0.0 both stand for both families
	Flag    string // the setting of Address, for errors
	Handler http.Handler
	// HardFail ends Run with an error if Address cannot be bound; otherwise Run tries again every
	// five seconds.
	HardFail bool
	// Failed is called with each failure to bind. It may be nil.
	Failed func(error)
	Log    *zap.Logger
}

// Run serves until ctx ends, and then lets requests finish for up to a second.
func (s *Server) Run(ctx context.Context) error {
	for {
		err := s.serve(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if s.Failed != nil {
			s.Failed(err)
		}
		if s.HardFail {
			return err
		}
		s.Log.Error("HTTP server", zap.Error(err), zap.Duration("retry_in", rebindInterval))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rebindInterval):
		}
	}
}

// serve binds the address and serves until ctx ends.
func (s *Server) serve(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return s.bindError(err)
	}
	s.Log.Info("HTTP server", zap.String("name", s.Name), zap.Stringer("address", listener.Addr()))
	server := NewServer(s.Handler, s.Log)
	finished := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(finished)
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close()
		}
	})
	err = server.Serve(listener)
	if !stop() {
		<-finished
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
	var errno syscall.Errno // leaves out what net.OpError and os.SyscallError repeat
	if errors.As(err, &errno) {
		err = errno
	}
	return fmt.Errorf("serve %s on %s: %w; %s", s.Name, s.Address, err, remedy)
}
