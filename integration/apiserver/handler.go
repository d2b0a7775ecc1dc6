package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxBody is how much of a posted Event is read, in bytes.
const maxBody = 1 << 20

// Handler returns the API; Start serves it.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(s.serve)
}

// serve answers one request and records it.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	request := parse(r)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	s.handlers.Add(1)
	defer s.handlers.Done()
	faults := s.faults
	enc, accepted := negotiate(r, !faults.noProtobuf)
	request.ContentType = enc.contentType
	number := len(s.requests)
	s.requests = append(s.requests, request)
	s.mu.Unlock()

	recorder := &statusRecorder{ResponseWriter: w}
	defer func() {
		s.mu.Lock()
		s.requests[number].Status = recorder.status
		s.mu.Unlock()
	}()
	if !accepted {
		http.Error(recorder, "only application/json and application/vnd.kubernetes.protobuf are served",
			http.StatusNotAcceptable)
		return
	}
	if err := s.answer(recorder, r, request, enc); err != nil {
		writeStatus(recorder, enc, err)
	}
}

// A statusRecorder keeps the HTTP status.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (w *statusRecorder) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusRecorder) Unwrap() http.ResponseWriter {
	return w.ResponseWriter
}

// parse reads a request's path and query.
func parse(r *http.Request) Request {
	query := r.URL.Query()
	request := Request{
		LabelSelector:   query.Get("labelSelector"),
		FieldSelector:   query.Get("fieldSelector"),
		ResourceVersion: query.Get("resourceVersion"),
		Streaming:       query.Get("sendInitialEvents") == "true",
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2: // api/v1/...
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3: // apis/group/v1/...
		request.Group, parts = parts[1], parts[3:]
	default:
		return request
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		request.Namespace, parts = parts[1], parts[2:]
	}
	request.Resource = parts[0]
	if len(parts) > 1 {
		request.Name = parts[1]
	}
	if len(parts) > 2 {
		request.Subresource = parts[2]
	}
	request.Verb = verb(r.Method, query.Get("watch"), request.Name)
	return request
}

func verb(method, watch, name string) string {
	switch {
	case method == http.MethodPost:
		return "create"
	case method != http.MethodGet:
		return strings.ToLower(method)
	case watch == "true" || watch == "1":
		return "watch"
	case name != "":
		return "get"
	}
	return "list"
}

// answer serves a request, or returns why not.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, request Request, enc encoding) statusError {
	if err := s.refuse(request); err != nil {
		return err
	}
	if request.Resource == "events" && request.Verb == "create" {
		return s.createEvent(w, r, enc)
	}
	c := s.collectionOf(request.Group, request.Resource)
	if c == nil {
		return errNotServed()
	}
	if request.Subresource != "" {
		return s.ofPod(w.(*statusRecorder), r, request)
	}
	selector, err := newSelector(request)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	switch request.Verb {
	case "get":
		return s.get(w, c, request, enc)
	case "list":
		return s.list(w, r, c, selector, enc)
	case "watch":
		return s.watch(w, r, c, selector, enc)
	}
	return apierrors.NewMethodNotSupported(schema.GroupResource{Group: request.Group, Resource: request.Resource},
		request.Verb)
}

// refuse returns the error of a fault that concerns the request.
func (s *Server) refuse(request Request) statusError {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource := schema.GroupResource{Group: request.Group, Resource: request.Resource}
	right, forbidden := request.Resource, errors.New("switched on by Forbid")
	if request.Subresource != "" {
		right += "/" + request.Subresource
		forbidden = fmt.Errorf("User \"test\" cannot %s resource %q, switched on by Forbid", request.Verb, right)
	}
	switch {
	case s.faults.failing != 0:
		return apierrors.NewGenericServerResponse(s.faults.failing, request.Verb, resource, request.Name,
			"switched on by Fail", 0, true)
	case s.faults.hidden[request.Resource]:
		return errNotServed()
	case s.faults.forbidden[right]:
		return apierrors.NewForbidden(resource, request.Name, forbidden)
	}
	return nil
}

func (s *Server) collectionOf(group, resource string) *collection {
	for _, c := range s.collections {
		if c.gvk.Group == group && c.resource == resource {
			return c
		}
	}
	return nil
}

func newSelector(request Request) (*selector, error) {
	byLabel, err := labels.Parse(request.LabelSelector)
	if err != nil {
		return nil, err
	}
	byField, err := fields.ParseSelector(request.FieldSelector)
	if err != nil {
		return nil, err
	}
	if request.Name != "" { // a watch on one object
		byField = fields.AndSelectors(byField, fields.OneTermEqualSelector("metadata.name", request.Name))
	}
	return &selector{namespace: request.Namespace, labels: byLabel, fields: byField}, nil
}

// get answers with one object.
func (s *Server) get(w http.ResponseWriter, c *collection, request Request, enc encoding) statusError {
	s.mu.Lock()
	e := c.entries[key(request.Namespace, request.Name)]
	s.mu.Unlock()
	if e == nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: request.Group, Resource: request.Resource}, request.Name)
	}
	body := enc.object(e)
	w.Header().Set("Content-Type", enc.contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // the client may be gone
	return nil
}

// createEvent records a posted Event.
func (s *Server) createEvent(w http.ResponseWriter, r *http.Request, enc encoding) statusError {
	event, err := decodeEvent(http.MaxBytesReader(w, r.Body, maxBody), r.Header.Get("Content-Type"))
	if err != nil {
		return apierrors.NewBadRequest("event: " + err.Error())
	}
	s.mu.Lock()
	s.version++
	event.ResourceVersion = strconv.FormatUint(s.version, 10)
	s.events = append(s.events, event)
	s.mu.Unlock()
	body := enc.object(newEntry(event.DeepCopy(), eventsv1.SchemeGroupVersion.WithKind("Event"), 0))
	w.Header().Set("Content-Type", enc.contentType)
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body) // the client may be gone
	return nil
}

// decodeEvent reads an Event in JSON or protobuf.
func decodeEvent(body io.Reader, contentType string) (*eventsv1.Event, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	event := new(eventsv1.Event)
	if media, _, _ := strings.Cut(contentType, ";"); media != runtime.ContentTypeProtobuf {
		return event, json.Unmarshal(data, event)
	}
	message, ok := bytes.CutPrefix(data, []byte(protobufMagic))
	if !ok {
		return nil, errors.New("not a protobuf object")
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(message); err != nil {
		return nil, err
	}
	return event, event.Unmarshal(unknown.Raw)
}

// A statusError is an answer other than success.
type statusError = *apierrors.StatusError

func errExpired(version, oldest uint64) statusError {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, oldest))
}

func errTooLarge(version, current uint64) statusError {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", version, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return err
}

func errNotServed() statusError {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "",
		"the server could not find the requested resource", 0, true)
}

// errNoWatchList is what a server without streaming lists says about sendInitialEvents.
func errNoWatchList(gvk schema.GroupVersionKind) statusError {
	err := apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", nil)
	err.ErrStatus.Message = fmt.Sprintf("ListOptions.meta.k8s.io of %s is invalid: sendInitialEvents: Forbidden: "+
		"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled", gvk.Kind)
	return err
}

// writeStatus answers with err.
func writeStatus(w http.ResponseWriter, enc encoding, err statusError) {
	w.Header().Set("Content-Type", enc.contentType)
	w.WriteHeader(int(err.ErrStatus.Code))
	_, _ = w.Write(enc.status(&err.ErrStatus)) // the client may be gone
}
