package informer

import (
	"errors"
	"fmt"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// isUnavailable reports whether this server does not serve the resource, or forbids reading it.
func isUnavailable(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

// isExpired reports whether err asks for a new list, which follows at once.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// reason classifies err, so that a failure is reported once although each attempt has another text,
// with another port number for instance.
func reason(err error) string {
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	return "unreachable"
}

// Concise shortens the error of an unanswered request to the host and the reason; it leaves out the
// request with its path and query. It returns other errors, and nil, unchanged.
func Concise(err error) error {
	request, ok := errors.AsType[*url.Error](err)
	if !ok {
		return err
	}
	reason := request.Err
	if request.Timeout() {
		reason = errors.New("no answer in time")
	}
	if network, ok := errors.AsType[*net.OpError](reason); ok {
		reason = network.Err // without the addresses: one of them is new each time
	}
	host := "API server"
	if u, err := url.Parse(request.URL); err == nil {
		host += " " + u.Host
	}
	return fmt.Errorf("%s: %w", host, reason)
}

// explain adds to err the resource and, if there is one, the remedy.
func explain(resource string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: %w; allow list and watch of %s in kube-nft's ClusterRole", resource, err, resource)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: %w; the API server does not accept the credentials: check the kubeconfig or service account",
			resource, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: %w; the API server does not serve them", resource, err)
	}
	return fmt.Errorf("%s: %w", resource, err)
}
