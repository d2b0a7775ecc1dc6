package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	eventsv1 "k8s.io/api/events/v1"
)

// A Server is an API server in memory. All its methods may be called at any time from any
// goroutine.
type Server struct {
	mu          sync.Mutex
	version     uint64                 // of the latest change
	collections map[string]*collection // by kind
	changed     chan struct{}          // closed and replaced when a watch has something to do
	faults      faults
	signals     signals
	command     Command
	logs        Logs
	requests    []Request
	events      []*eventsv1.Event

	handlers sync.WaitGroup // requests being served; added to under mu, while not closed
	closed   bool
	ended    context.Context // commands in pods end when the server does
	end      context.CancelFunc
	address  string // host:port, once started
	web      *http.Server
}

// New returns an empty server that listens nowhere yet.
func New() *Server {
	ended, end := context.WithCancel(context.Background())
	s := &Server{
		ended: ended, end: end,
		version:     1,
		collections: make(map[string]*collection, len(kinds)),
		changed:     make(chan struct{}),
		faults:      newFaults(),
	}
	for _, kind := range kinds {
		s.collections[kind.gvk.Kind] = newCollection(kind)
	}
	return s
}

// Start listens on a TCP address, such as 127.0.0.1:0 for any free port of the loopback
// interface, and returns the server's URL.
func (s *Server) Start(address string) (url string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.web != nil {
		return "", errors.New("apiserver: already started")
	}
	if err := s.listen(address); err != nil {
		return "", err
	}
	return "http://" + s.address, nil
}

func (s *Server) listen(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	s.address = listener.Addr().String()
	s.web = &http.Server{Handler: s.Handler(), ReadHeaderTimeout: time.Minute}
	go func(web *http.Server) { _ = web.Serve(listener) }(s.web) // ends with Close
	return nil
}

// Close ends all connections and returns when the last request has been served. A request that arrives later is cut
// off.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.end()
	s.hangUp()
	s.mu.Unlock()
	s.handlers.Wait()
}

// hangUp stops listening and closes all connections.
func (s *Server) hangUp() {
	if s.web != nil {
		_ = s.web.Close() // the sockets are gone either way
		s.web = nil
	}
}

// Kubeconfig writes a kubeconfig for the started server into dir and returns its path.
func (s *Server) Kubeconfig(dir string) (path string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path = filepath.Join(dir, "kubeconfig")
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "http://%s"}}]
users: [{name: test, user: {}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, s.address)
	return path, os.WriteFile(path, []byte(content), 0o600)
}

// Apply creates or replaces objects, each at a resource version of its own. It copies
// them. It panics if one is not of a kind that is served.
func (s *Server) Apply(objects ...object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		kind := kindOf(o)
		if kind == "" {
			panic(fmt.Sprintf("apiserver: cannot hold a %T", o))
		}
		s.version++
		s.collections[kind].put(o.DeepCopyObject().(object), s.version)
	}
	s.wake()
}

// Delete removes an object, named by its kind (Service, Node, Pod, Event, DaemonSet,
// EndpointSlice or ServiceCIDR), namespace and name; it reports whether there was one.
func (s *Server) Delete(kind, namespace, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	found := s.collections[kind].remove(key(namespace, name), s.version)
	s.wake()
	return found
}

// wake lets every watch look for news.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// A Request is what a client asked for.
type Request struct {
	Verb            string // as in RBAC: get, list, watch or create
	Group, Resource string
	Namespace, Name string // empty: all
	Subresource     string // exec or log, of a Pod

	LabelSelector, FieldSelector string

	ResourceVersion string
	Streaming       bool   // a watch that asks for initial events
	ContentType     string // of the answer
	Status          int    // HTTP status; 0 for one that was cut off before it
}

// Requests returns all requests so far, in the order of their arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Events returns the Events that were posted.
func (s *Server) Events() []*eventsv1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}
