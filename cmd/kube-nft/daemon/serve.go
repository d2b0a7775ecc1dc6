package daemon

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/sync/health"
	"github.com/kube-nft/kube-nft/sync/metrics"
	"github.com/kube-nft/kube-nft/sync/web"
)

// proxyMode is the answer of /proxyMode: kube-proxy's name for the mode that kube-nft replaces.
const proxyMode = "nftables"

// newServers returns the servers of the settings. flags are what /flagz shows.
func (m *monitor) newServers(flags map[string]string) ([]*web.Server, error) {
	c := m.config
	metricsHandler, err := metricsHandler(c, flags, m.metrics, m.log)
	if err != nil {
		return nil, err
	}
	var servers []*web.Server
	add := func(name, flag, reason string, address netip.AddrPort, keepAlive bool, handler http.Handler) {
		if !address.IsValid() {
			return
		}
		servers = append(servers, &web.Server{
			Name: name, Address: address.String(), Flag: flag, Handler: handler,
			KeepAlive: keepAlive,
			HardFail:  c.BindAddressHardFail,
			Failed:    func(err error) { m.events.Node(reason, "Listen", err.Error()) },
			Log:       m.log,
		})
	}
	add("health", "--healthz-bind-address", "FailedToStartProxierHealthcheck", c.Healthz, false,
		healthHandler(m.proxy, m.metrics))
	add("metrics", "--metrics-bind-address", "FailedToStartMetricServer", c.Metrics, true, metricsHandler)
	return servers, nil
}

// healthHandler answers the kubelet and load balancers.
func healthHandler(proxy *health.Proxy, m *metrics.Metrics) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", m.CountHealthz(proxy.Healthz))
	mux.Handle("/livez", m.CountLivez(proxy.Livez))
	mux.Handle("/readyz", m.CountReadyz(proxy.Readyz))
	return mux
}

// metricsHandler answers Prometheus and people. flags are what /flagz shows.
func metricsHandler(c *config.Config, flags map[string]string, m *metrics.Metrics,
	log *zap.Logger) (http.Handler, error) {
	settings, err := c.JSON()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", m.Handler(log))
	mux.Handle("/metrics/slis", m.ChecksHandler(log))
	mux.Handle("/healthz", m.CountPing(constant("text/plain; charset=utf-8", "ok")))
	mux.Handle("/proxyMode", constant("text/plain; charset=utf-8", proxyMode))
	mux.Handle("/configz", constant("application/json", string(settings)))
	paths := []string{"/configz", "/healthz", "/metrics", "/proxyMode"}
	if c.Flagz {
		mux.Handle("/flagz", web.FlagsPage(flags))
		paths = append(paths, "/flagz")
	}
	if c.Statusz {
		build := config.Build()
		slices.Sort(paths)
		status := web.Status{
			Started: started, GoVersion: build.GoVersion, BinaryVersion: strings.TrimPrefix(build.GitVersion, "v"),
			Follows: config.Follows, Paths: paths,
		}
		mux.Handle("/statusz", status.Page())
	}
	if c.Profiling {
		list := constant("text/plain; charset=utf-8", "v\nlog-level\n")
		mux.Handle("/debug/flags", list)
		mux.Handle("/debug/flags/{$}", list)
		mux.Handle("/debug/flags/v", &levelFlag{level: c.LogLevel, log: log, parse: parseVerbosity, text: verbosityText})
		mux.Handle("/debug/flags/log-level", &levelFlag{level: c.LogLevel, log: log, parse: config.ParseLevel,
			text: zapcore.Level.String})
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux, nil
}

// started is when this process began to work.
var started = time.Now()

// A levelFlag is a flag for the level of the log that a request can change, as kube-proxy has one for its
// verbosity: PUT sets it, GET returns it.
type levelFlag struct {
	level zap.AtomicLevel
	log   *zap.Logger
	parse func(string) (zapcore.Level, error)
	text  func(zapcore.Level) string
}

// ServeHTTP implements http.Handler.
func (f *levelFlag) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		fmt.Fprintln(w, f.text(f.level.Level())) // fails only if the client is gone, here and below
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
		level, err = f.parse(strings.TrimSpace(string(body)))
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintln(w, err)
		return
	}
	setLevel(f.level, level, r.RemoteAddr, f.log)
	fmt.Fprintf(w, "log level %s\n", level)
}

// setLevel changes the level of the log, and leaves a line about it whichever of the two is the quieter.
func setLevel(to zap.AtomicLevel, level zapcore.Level, by string, log *zap.Logger) {
	before := to.Level()
	if before == level {
		return
	}
	to.SetLevel(min(before, level))
	log.Warn("log level changed", zap.Stringer("from", before), zap.Stringer("to", level), zap.String("by", by))
	to.SetLevel(level)
}

func parseVerbosity(text string) (zapcore.Level, error) {
	verbosity, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return zapcore.InfoLevel,
			errors.New("expected a whole number, 0 to 4294967295: from 4 on it means the level debug, else info")
	}
	return config.LevelOf(uint32(verbosity)), nil
}

// verbosityText is the least verbosity that stands for a level.
func verbosityText(level zapcore.Level) string {
	if level == zapcore.DebugLevel {
		return strconv.Itoa(config.DebugVerbosity)
	}
	return "0"
}

// constant answers every request with the same body.
func constant(contentType, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Write([]byte(body)) // fails only if the client is gone
	})
}
