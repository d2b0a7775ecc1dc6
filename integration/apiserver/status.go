package apiserver

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "", "the server could not find the requested resource", 0, true)
}

// errNoWatchList is what a server without streaming lists says about sendInitialEvents.
func errNoWatchList(gvk schema.GroupVersionKind) statusError {
	err := apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", nil)
	err.ErrStatus.Message = fmt.Sprintf("ListOptions.meta.k8s.io of %s is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled", gvk.Kind)
	return err
}

// writeStatus answers with err.
func writeStatus(w http.ResponseWriter, enc encoding, err statusError) {
	w.Header().Set("Content-Type", enc.contentType)
	w.WriteHeader(int(err.ErrStatus.Code))
	_, _ = w.Write(enc.status(&err.ErrStatus)) // the client may be gone
}
