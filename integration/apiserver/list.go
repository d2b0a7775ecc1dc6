package apiserver

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bufferSize is how many bytes of an answer are gathered before they are sent.
const bufferSize = 1 << 16

// A page is where a chunk of a list begins.
type page struct {
	version uint64 // the version of the list's first chunk
	after   string // the key before the first of this chunk
}

// token returns p as the continue parameter of the next request.
func (p page) token() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", p.version, p.after))
}

func parseToken(token string) (page, error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return page{}, err
	}
	version, after, _ := strings.Cut(string(text), " ")
	number, err := strconv.ParseUint(version, 10, 64)
	return page{version: number, after: after}, err
}

// list answers with a list or a chunk of one. Later chunks show the present state under the version
// of the first: a watch from that version brings the rest.
func (s *Server) list(w http.ResponseWriter, r *http.Request, c *collection, selector *selector,
	enc encoding) statusError {
	query := r.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit")) // none if it is not a number
	s.mu.Lock()
	start, failure := s.firstPage(c, query.Get("continue"), query.Get("resourceVersion"),
		query.Get("resourceVersionMatch"))
	if failure != nil {
		s.mu.Unlock()
		return failure
	}
	entries, more := c.list(selector, start.after, limit)
	s.mu.Unlock()

	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(start.version, 10)}
	if more {
		meta.Continue = page{version: start.version, after: entries[len(entries)-1].key}.token()
	}
	w.Header().Set("Content-Type", enc.contentType)
	w.WriteHeader(http.StatusOK)
	buffer := bufio.NewWriterSize(w, bufferSize)
	if enc.list(buffer, c.gvk, meta, entries) == nil {
		_ = buffer.Flush() // the client may be gone
	}
	return nil
}

// firstPage says where a list begins and which version it has.
func (s *Server) firstPage(c *collection, token, version, match string) (page, statusError) {
	if token != "" {
		start, err := parseToken(token)
		if err != nil {
			return page{}, apierrors.NewBadRequest("continue: " + err.Error())
		}
		if start.version < c.oldest {
			return page{}, errExpired(start.version, c.oldest)
		}
		return start, nil
	}
	wanted, failure := s.parseVersion(version)
	if failure != nil {
		return page{}, failure
	}
	if match == string(metav1.ResourceVersionMatchExact) && wanted != s.version {
		return page{}, errExpired(wanted, s.version)
	}
	return page{version: s.version}, nil
}

// parseVersion reads a resource version that must not be in the future; empty is 0.
func (s *Server) parseVersion(version string) (uint64, statusError) {
	if version == "" {
		return 0, nil
	}
	wanted, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("resourceVersion: %q is not a number", version))
	}
	if wanted > s.version {
		return 0, errTooLarge(wanted, s.version)
	}
	return wanted, nil
}
