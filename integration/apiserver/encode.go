package apiserver

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// protobufMagic precedes every object in protobuf.
// Source: k8s.io/apimachinery/pkg/runtime/serializer/protobuf.
const protobufMagic = "k8s\x00"

// An entry is one version of one object with its encodings, which are made when first
// asked for. Its object never changes.
type entry struct {
	object  object
	gvk     schema.GroupVersionKind
	key     string
	version uint64

	json, protobuf func() []byte
}

func newEntry(o object, gvk schema.GroupVersionKind, version uint64) *entry {
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return &entry{
		object:   o,
		gvk:      gvk,
		key:      key(o.GetNamespace(), o.GetName()),
		version:  version,
		json:     sync.OnceValue(func() []byte { return must(json.Marshal(o)) }),
		protobuf: sync.OnceValue(func() []byte { return must(o.Marshal()) }),
	}
}

// at returns a copy of e with another resource version.
func (e *entry) at(version uint64) *entry {
	o := e.object.DeepCopyObject().(object)
	o.SetResourceVersion(strconv.FormatUint(version, 10))
	return newEntry(o, e.gvk, version)
}

// must returns data; API types always encode.
func must(data []byte, err error) []byte {
	if err != nil {
		panic(fmt.Sprintf("apiserver: encode: %v", err))
	}
	return data
}

// An encoding writes objects in one of the two content types.
type encoding struct {
	contentType string
	protobuf    bool
}

// negotiate chooses the first encoding of the Accept header that is served.
func negotiate(r *http.Request, protobuf bool) (encoding, bool) {
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = runtime.ContentTypeJSON
	}
	for choice := range strings.SplitSeq(accept, ",") {
		media, _, _ := strings.Cut(strings.TrimSpace(choice), ";")
		switch {
		case media == runtime.ContentTypeProtobuf && protobuf:
			return encoding{contentType: media, protobuf: true}, true
		case media == runtime.ContentTypeJSON, media == "*/*", media == "application/*":
			return encoding{contentType: runtime.ContentTypeJSON}, true
		}
	}
	return encoding{}, false
}

// object returns e as a response body.
func (enc encoding) object(e *entry) []byte {
	if enc.protobuf {
		return envelope(e.gvk, e.protobuf())
	}
	return e.json()
}

// status returns status as a response body.
func (enc encoding) status(status *metav1.Status) []byte {
	if enc.protobuf {
		return envelope(metav1.SchemeGroupVersion.WithKind("Status"), must(status.Marshal()))
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return must(json.Marshal(status))
}

// list writes a list of entries.
func (enc encoding) list(w io.Writer, gvk schema.GroupVersionKind, meta metav1.ListMeta, entries []*entry) error {
	gvk.Kind += "List"
	if enc.protobuf {
		return writeAll(w, envelope(gvk, protobufList(meta, entries)))
	}
	head := must(json.Marshal(meta))
	version, kind := gvk.ToAPIVersionAndKind()
	parts := [][]byte{fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, kind, version, head)}
	for i, e := range entries {
		if i > 0 {
			parts = append(parts, []byte{','})
		}
		parts = append(parts, e.json())
	}
	return writeAll(w, append(parts, []byte("]}"))...)
}

// protobufList encodes a list message: field 1 is its metadata, field 2 an item, as in
// every list type of the API.
func protobufList(meta metav1.ListMeta, entries []*entry) []byte {
	head := must(meta.Marshal())
	size := 11 + len(head)
	for _, e := range entries {
		size += 11 + len(e.protobuf())
	}
	list := appendField(make([]byte, 0, size), 1, head)
	for _, e := range entries {
		list = appendField(list, 2, e.protobuf())
	}
	return list
}

// appendField appends a length-delimited protobuf field.
func appendField(to []byte, number byte, value []byte) []byte {
	to = append(to, number<<3|2)
	to = binary.AppendUvarint(to, uint64(len(value)))
	return append(to, value...)
}

// envelope wraps a protobuf message as the API sends it.
func envelope(gvk schema.GroupVersionKind, message []byte) []byte {
	version, kind := gvk.ToAPIVersionAndKind()
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}, Raw: message}
	return append([]byte(protobufMagic), must(unknown.Marshal())...)
}

// event writes one frame of a watch: a line of JSON, or four bytes of length and a
// protobuf message.
func (enc encoding) event(w io.Writer, kind watch.EventType, body []byte) error {
	if !enc.protobuf {
		return writeAll(w, fmt.Appendf(nil, `{"type":%q,"object":`, kind), body, []byte("}\n"))
	}
	event := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: body}}
	frame := must(event.Marshal())
	return writeAll(w, binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame)
}

func writeAll(w io.Writer, parts ...[]byte) error {
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}
