package informer

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestShortErrorsOfTheAPIServer(t *testing.T) {
	const list = "https://192.0.2.10:6443/api/v1/services?labelSelector=a&limit=500"
	request := func(reason error) error { return &url.Error{Op: "Get", URL: list, Err: reason} }
	dial := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 10), Port: 6443},
		Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	lookup := &net.OpError{Op: "dial", Net: "tcp",
		Err: &net.DNSError{Err: "no such host", Name: "api.example", IsNotFound: true}}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{request(dial), "API server 192.0.2.10:6443: connect: connection refused"},
		{request(lookup), "API server 192.0.2.10:6443: lookup api.example: no such host"},
		{request(context.DeadlineExceeded), "API server 192.0.2.10:6443: no answer in time"},
		{&url.Error{Op: "Get", URL: "http://[", Err: errors.New("no")}, "API server: no"},
		{apierrors.NewUnauthorized("who are you?"), "who are you?"},
	} {
		got := Concise(tt.err)
		if got.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", got, tt.want)
		}
		if cause := errors.Unwrap(tt.err); cause == dial && !errors.Is(got, syscall.ECONNREFUSED) {
			t.Errorf("%v does not unwrap to its reason", got)
		}
	}
	if Concise(nil) != nil {
		t.Error("nil is an error")
	}
}

// TestBackoff: the first retry comes soon, and no pause is longer than what users wait for
// after an outage.
func TestBackoff(t *testing.T) {
	for _, tt := range []struct {
		optional bool
		limit    time.Duration
	}{{false, 15 * time.Second}, {true, 90 * time.Second}} {
		s := store{resource: resource{optional: tt.optional}}
		pause := s.backoff().DelayFunc()
		if first := pause(); first > 300*time.Millisecond {
			t.Errorf("the first pause is %v", first)
		}
		var longest time.Duration
		for range 1000 {
			longest = max(longest, pause())
		}
		if longest > tt.limit || longest < tt.limit*2/3 {
			t.Errorf("the longest pause is %v, want up to %v", longest, tt.limit)
		}
	}
}
