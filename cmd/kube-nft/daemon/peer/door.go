package peer

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/sync/web"
)

// What can be asked, in HTTP, with answers in JSON but for metrics:
// curl --unix-socket /run/kube-nft/net-4026531840.sock http://kube-nft/status
const (
	pathSettings = "/settings"
	pathStatus   = "/status"
	pathMetrics  = "/metrics" // in the text format of Prometheus
)

// Answers are the daemon's answers. They are called from any goroutine.
type Answers struct {
	Settings func() (*config.Running, error)
	Status   func() *Status
	Metrics  http.Handler
}

func (a *Answers) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathSettings, func(w http.ResponseWriter, _ *http.Request) {
		settings, err := a.Settings()
		write(w, settings, err)
	})
	mux.HandleFunc("GET "+pathStatus, func(w http.ResponseWriter, _ *http.Request) { write(w, a.Status(), nil) })
	mux.Handle("GET "+pathMetrics, a.Metrics)
	return mux
}

// write writes an answer. An error of the connection only means that the command has ended.
func write(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// A Door is the socket file of a daemon.
type Door struct {
	path   string
	file   os.FileInfo
	server *http.Server
}

// Open makes the socket file of a role and answers there until Close. It replaces the file of a
// daemon that was killed.
func Open(role Role, answers *Answers, log *zap.Logger) (*Door, error) {
	name, err := role.fileName()
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, directory := range directories() {
		d := &Door{path: filepath.Join(directory, name)}
		listener, err := d.listen()
		if err != nil {
			failures = append(failures, err)
			continue
		}
		d.server = web.NewServer(answers.handler(), false, log)
		go d.server.Serve(listener) // ends with Close
		return d, nil
	}
	return nil, errors.Join(failures...)
}

// listen makes the file under another name and renames it: a command finds the old daemon or the new
// one, and two daemons that start at the same time do not disturb each other.
func (d *Door) listen() (net.Listener, error) {
	directory := filepath.Dir(d.path)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(directory, 0o700); err != nil { // the kubelet makes directories that others can enter
		return nil, err
	}
	fresh := filepath.Join(directory, rand.Text())
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // the name belongs to the next daemon then
	if err = os.Chmod(fresh, 0o600); err == nil {
		if d.file, err = os.Lstat(fresh); err == nil {
			err = os.Rename(fresh, d.path)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket for commands: %w", err), listener.Close(), os.Remove(fresh))
	}
	return listener, nil
}

// Close ends the answers and removes the file, unless another daemon has replaced it.
func (d *Door) Close() error {
	if d == nil {
		return nil
	}
	var err error
	if now, statErr := os.Lstat(d.path); statErr == nil && os.SameFile(now, d.file) {
		err = os.Remove(d.path)
	}
	return errors.Join(err, d.server.Close())
}
