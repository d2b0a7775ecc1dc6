package daemon

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/tracker"
)

// TestInterimTake: the loop's first Take gives what the interim took, with what came since; the next
// ones give what is new.
func TestInterimTake(t *testing.T) {
	source := &interim{tracker: tracker.New(tracker.Config{NodeName: "node"})}
	set := func(name, ip string) {
		t.Helper()
		err := source.tracker.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports:      []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	set("kept", "10.96.0.1")
	set("deleted", "10.96.0.2")
	source.taken.Merge(source.tracker.Take())
	source.tracker.DeleteService("shop", "deleted")
	set("new", "10.96.0.3")
	delta := source.Take()
	if len(delta.Changed) != 2 || len(delta.Removed) != 1 || delta.Oldest.IsZero() ||
		time.Since(delta.Oldest) > time.Minute {
		t.Errorf("first %+v", delta)
	}
	if delta := source.Take(); !delta.Empty() {
		t.Errorf("then %+v", delta)
	}
	set("newer", "10.96.0.4")
	if delta := source.Take(); len(delta.Changed) != 1 || len(delta.Removed) != 0 {
		t.Errorf("at last %+v", delta)
	}
}
