package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
)

// An Event is a document about one moment, as trace and flows print them.
type Event interface {
	output.Document
	At() *Origin
}

// An Origin says when and where something happened.
type Origin struct {
	Time time.Time `json:"time"`
	// Node is set by kubectl kube-nft.
	Node string `json:"node,omitempty"`
}

// At implements Event.
func (o *Origin) At() *Origin { return o }

// now is the origin of what happens on this node.
func now() Origin { return Origin{Time: time.Now()} }

// ReadEvent reads an event as trace -o json and flows -o json print it.
func ReadEvent(line []byte) (Event, error) {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(line, &kind); err != nil {
		return nil, errors.New("not JSON")
	}
	event := map[string]Event{
		"TracedPacket": new(TracedPacket), "EndedConnection": new(EndedConnection), "LostConnections": new(LostConnections),
	}[kind.Kind]
	if event == nil {
		return nil, fmt.Errorf("kind %q is not known", kind.Kind)
	}
	return event, json.Unmarshal(line, event)
}
