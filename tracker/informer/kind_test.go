package informer_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/tracker/informer"
	"github.com/kube-nft/kube-nft/tracker/trackertest"
)

// TestListOfAnotherKind: a server that answers with a list of Pods is an error, and nothing is taken from it.
func TestListOfAnotherKind(t *testing.T) {
	for _, items := range []string{"", `{"metadata":{"name":"a","namespace":"b"}}`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") != "" {
				http.Error(w, "no", http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[%s]}`, items)
		}))
		t.Cleanup(server.Close)
		var mu sync.Mutex
		said := make(map[string]string)
		options := informer.Options{Reached: func(resource string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				said[resource] = err.Error()
			}
		}}
		source := run(t, dial(t, server.URL, "application/json"), options, trackertest.NewSink())
		deadline := time.Now().Add(patience)
		for {
			mu.Lock()
			done := strings.Contains(said["services"], "expected ServiceList, got PodList") &&
				strings.Contains(said["endpointslices"], "expected EndpointSliceList, got PodList")
			mu.Unlock()
			if done {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("errors %v, want that another kind was expected", said)
			}
			time.Sleep(2 * time.Millisecond)
		}
		select {
		case <-source.Synced():
			t.Error("synced with a list of Pods")
		default:
		}
	}
}
