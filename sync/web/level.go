package web

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// A LevelFlag is a flag for the level of the log that a request can change, as kube-proxy has one for its
// verbosity: PUT sets it, GET returns it.
type LevelFlag struct {
	Level zap.AtomicLevel
	Log   *zap.Logger
	Parse func(string) (zapcore.Level, error)
	Text  func(zapcore.Level) string
}

// ServeHTTP implements http.Handler.
func (f *LevelFlag) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		fmt.Fprintln(w, f.Text(f.Level.Level())) // fails only if the client is gone, here and below
		return
	case http.MethodPut:
	default:
		w.Header().Set("Allow", "GET, PUT")
		w.WriteHeader(http.StatusNotAcceptable) // as kube-proxy answers
		fmt.Fprintln(w, "expected GET or PUT")
		return
	}
	body, err := io.ReadAll(r.Body)
	var level zapcore.Level
	if err == nil {
		level, err = f.Parse(strings.TrimSpace(string(body)))
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintln(w, err)
		return
	}
	f.set(level, r.RemoteAddr)
	fmt.Fprintf(w, "log level %s\n", level)
}

// set changes the level. It logs the change at the more verbose of both levels, so that the line appears.
func (f *LevelFlag) set(level zapcore.Level, by string) {
	before := f.Level.Level()
	if before == level {
		return
	}
	f.Level.SetLevel(min(before, level))
	f.Log.Warn("log level changed", zap.Stringer("from", before), zap.Stringer("to", level), zap.String("by", by))
	f.Level.SetLevel(level)
}

// Constant answers every request with the same body.
func Constant(contentType, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Write([]byte(body)) // fails only if the client is gone
	})
}
