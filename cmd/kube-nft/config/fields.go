package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "sigs.k8s.io/json"

	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/tracker/manifest"
)

// A section is a document under decoding.
type section struct {
	file string
	tree map[string]any
	into any // pointer to the API type
}

// decode stores the document, and returns a line about each field that does not exist. An error names
// the first field whose value has the wrong type.
func (s *section) decode(converted []byte) (ignored []string, err error) {
	unknown, err := utiljson.UnmarshalStrict(converted, s.into, utiljson.DisallowUnknownFields)
	if err != nil {
		return nil, s.typeError(converted, err)
	}
	for _, err := range unknown {
		field, ok := errors.AsType[utiljson.FieldError](err)
		if !ok {
			return nil, &Error{Setting: s.file, Reason: words.OneLine(err)}
		}
		if path := field.FieldPath(); !slices.Contains(retiredFields, path) {
			ignored = append(ignored, s.unknown(path))
		}
	}
	return ignored, nil
}

// retiredFields are fields that older versions of kube-proxy had and wrote.
var retiredFields = []string{"udpIdleTimeout", "resourceContainer", "conntrack.max", "ipvs.ExcludeCIDRs"}

// unknown says that a field does not exist, and which field the user may have meant: the one whose
// path differs in case alone, or else the first with that name.
func (s *section) unknown(path string) string {
	paths := fieldPaths(reflect.TypeOf(s.into).Elem(), "")
	last := func(path string) string { return path[strings.LastIndex(path, ".")+1:] }
	i := slices.IndexFunc(paths, func(known string) bool { return strings.EqualFold(known, path) })
	if i < 0 {
		i = slices.IndexFunc(paths, func(known string) bool { return strings.EqualFold(last(known), last(path)) })
	}
	meant := ""
	if i >= 0 {
		meant = "; is " + paths[i] + " meant?"
	}
	return fmt.Sprintf("%s: %s: ignored, there is no such field%s", s.file, brief(path), meant)
}

// typeError names the field that prevents decoding.
func (s *section) typeError(converted []byte, err error) error {
	api := reflect.TypeOf(s.into).Elem()
	wrong := manifest.TypeError(converted, reflect.New(api).Interface())
	for _, leaf := range leaves(s.tree, "") {
		text, path := leaf.text(), leaf.path
		switch {
		case wrong == nil && strings.HasSuffix(err.Error(), strconv.Quote(text)): // errors of durations name no field
			return &Error{Setting: s.file + ": " + path, Value: text, Reason: "expected a duration such as 30s"}
		case wrong == nil || !strings.HasPrefix(path+".", wrong.Field+"."):
			continue
		}
		expected := wrong.Type
		duration := reflect.TypeFor[metav1.Duration]() // is decoded from a string
		if field, ok := fieldAt(reflect.New(api).Elem(), wrong.Field); ok &&
			(field.Type() == duration || field.Type() == reflect.PointerTo(duration)) {
			expected = duration
		}
		reason := "expected " + manifest.TypeName(expected)
		if _, quoted := leaf.value.(string); quoted &&
			json.Unmarshal([]byte(text), reflect.New(expected).Interface()) == nil {
			text, reason = strconv.Quote(text), reason+", without quotes"
		}
		return &Error{Setting: s.file + ": " + wrong.Field, Value: text, Reason: reason}
	}
	return &Error{Setting: s.file, Reason: words.OneLine(err)}
}

// A leaf is a value of a document that is not an object, or an empty one.
type leaf struct {
	path  string
	value any
}

// leaves lists the leaves below value in the order of their paths.
func leaves(value any, path string) []leaf {
	object, ok := value.(map[string]any)
	if !ok || len(object) == 0 {
		return []leaf{{path, value}}
	}
	var all []leaf
	for _, name := range slices.Sorted(maps.Keys(object)) {
		all = append(all, leaves(object[name], strings.TrimPrefix(path+"."+name, "."))...)
	}
	return all
}

// text returns the value as the file may have it.
func (l *leaf) text() string {
	if text, ok := l.value.(string); ok && text != "" {
		return text
	}
	text, err := json.Marshal(l.value)
	if err != nil {
		return fmt.Sprint(l.value)
	}
	return string(text)
}

// zero reports whether the value counts as left out.
func (l *leaf) zero() bool {
	switch value := l.value.(type) {
	case string:
		return value == "" || value == "0" || value == "0s"
	case []any:
		return len(value) == 0
	case map[string]any: // empty, as it is a leaf
		return true
	}
	return l.value == nil || reflect.ValueOf(l.value).IsZero()
}

// fieldAt returns the field of an API value that has this path in a file.
func fieldAt(v reflect.Value, path string) (reflect.Value, bool) {
	for name := range strings.SplitSeq(path, ".") {
		if !isSection(v.Type()) {
			return v, false
		}
		fields := reflect.VisibleFields(v.Type())
		i := slices.IndexFunc(fields, func(field reflect.StructField) bool { return jsonName(field) == name })
		if i < 0 {
			return v, false
		}
		v = v.FieldByIndex(fields[i].Index)
	}
	return v, true
}

// fieldPaths lists the fields of an API type, sections first.
func fieldPaths(api reflect.Type, prefix string) []string {
	var paths []string
	for _, field := range reflect.VisibleFields(api) {
		name := jsonName(field)
		if name == "" {
			continue
		}
		paths = append(paths, prefix+name)
		if isSection(field.Type) {
			paths = append(paths, fieldPaths(field.Type, prefix+name+".")...)
		}
	}
	return paths
}

// jsonName returns the name in JSON; empty for embedded structs, whose fields appear directly.
func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// isSection reports whether values of the type are objects with fields.
func isSection(api reflect.Type) bool {
	return api.Kind() == reflect.Struct && !reflect.PointerTo(api).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// The modes: kube-proxy's name for what kube-nft does, and one that only kube-nft has.
const (
	modeNFTables = "nftables"
	modeShadow   = "shadow"
)

// A uselessField is a field of KubeProxyConfiguration, or a section, that has no effect here.
type uselessField struct {
	path     string
	harmless []string // values besides zero that are, or were, kube-proxy's defaults
}

// uselessFields lists fields of a KubeProxyConfiguration that an operator might miss, as "path value":
// fields for other modes and systems, and of older versions, with values other than their defaults.
// Of two entries that match, the first counts. iptables.localhostNodePorts has a notice of its own
// instead.
func uselessFields(tree map[string]any) []string {
	known := []uselessField{
		{"mode", []string{modeNFTables, modeShadow}},
		{"ipvs.syncPeriod", []string{"30s"}},
		{"ipvs", nil},
		{"winkernel", nil},
		{"windowsRunAsService", nil},
		{"portRange", nil},
		{"showHiddenMetricsForVersion", nil},
		{"clientConnection.acceptContentTypes", nil},
		{"logging.vmodule", nil},
		{"logging.options", nil},
		{"configSyncPeriod", []string{"15m", "15m0s"}},
		{"udpIdleTimeout", []string{"250ms"}},
		{"resourceContainer", []string{"/kube-proxy"}},
		{"conntrack.max", nil},
	}
	if mode, _ := tree["mode"].(string); mode == modeNFTables {
		known = append(known,
			uselessField{"iptables.masqueradeAll", nil},
			uselessField{"iptables.masqueradeBit", []string{"14"}},
			uselessField{"iptables.syncPeriod", []string{"30s"}},
			uselessField{"iptables.minSyncPeriod", []string{"1s"}})
	}
	var found []string
	for _, leaf := range leaves(tree, "") {
		i := slices.IndexFunc(known, func(field uselessField) bool {
			return strings.HasPrefix(leaf.path+".", field.path+".")
		})
		if i >= 0 && !leaf.zero() && !slices.Contains(known[i].harmless, leaf.text()) {
			found = append(found, brief(leaf.path+" "+leaf.text()))
		}
	}
	return found
}
