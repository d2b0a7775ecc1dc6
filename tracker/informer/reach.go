package informer

import (
	"errors"
	"fmt"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// isUnavailable reports whether the resource cannot be read from this server now: it is
// not served, or reading it is forbidden.
func isUnavailable(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

// isExpired reports whether err asks for a new list, which follows at once.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// reason classifies err, so that a failure is reported once although the text of each
// attempt differs, in a port number for instance.
func reason(err error) string {
	if err == nil {
		return ""
	}
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	return "unreachable"
}

// Concise shortens the error of a request that got no answer to the host that was asked and
// the reason; the request itself, with its path and query, is left out. Other errors, and nil,
// it returns as they are.
func Concise(err error) error {
	var request *url.Error
	if !errors.As(err, &request) {
		return err
	}
	reason := request.Err
	var network *net.OpError
	if errors.As(reason, &network) {
		reason = network.Err // without the addresses, one of which is new each time
	}
	host := "API server"
	if u, err := url.Parse(request.URL); err == nil {
		host += " " + u.Host
	}
	return fmt.Errorf("%s: %w", host, reason)
}

// explain adds to err the resource and, where there is one, the remedy.
func explain(resource string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: %w; allow list and watch of %s in kube-nft's ClusterRole", resource, err, resource)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: %w; the API server does not accept the credentials: check the kubeconfig or service account", resource, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: %w; the API server does not serve them", resource, err)
	}
	return fmt.Errorf("%s: %w", resource, err)
}
