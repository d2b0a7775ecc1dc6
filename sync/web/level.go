package web

import (
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
	answer := func(code int, text string) { Answer(w, code, plain, []byte(text+"\n")) }
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		answer(http.StatusOK, f.Text(f.Level.Level()))
		return
	case http.MethodPut:
	default:
		w.Header().Set("Allow", "GET, PUT")
		answer(http.StatusNotAcceptable, "expected GET or PUT") // as kube-proxy answers
		return
	}
	body, err := io.ReadAll(r.Body)
	var level zapcore.Level
	if err == nil {
		level, err = f.Parse(strings.TrimSpace(string(body)))
	}
	if err != nil {
		answer(http.StatusBadRequest, err.Error())
		return
	}
	f.set(level, r.RemoteAddr)
	answer(http.StatusOK, "log level "+level.String())
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
		Answer(w, http.StatusOK, contentType, []byte(body))
	})
}

// plain is the content type of text.
const plain = "text/plain; charset=utf-8"

// Answer answers a request. The write fails only if the client is gone.
func Answer(w http.ResponseWriter, code int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	w.Write(body)
}
