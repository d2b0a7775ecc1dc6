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
		return nil, s.misfit(err)
	}
	for _, err := range unknown {
		var field utiljson.FieldError
		if !errors.As(err, &field) {
			return nil, &Error{Setting: s.file, Reason: oneLine(err)}
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

// misfit finds the field that prevents decoding: the first leaf that cannot be decoded alone.
func (s *section) misfit(err error) error {
	api := reflect.TypeOf(s.into).Elem()
	for _, leaf := range leaves(s.tree, nil) {
		alone, _ := json.Marshal(leaf.tree()) // it was JSON before
		if utiljson.UnmarshalCaseSensitivePreserveInts(alone, reflect.New(api).Interface()) == nil {
			continue
		}
		path, field := deepest(api, leaf.path)
		value, reason := leaf.text(), "expected "+describe(field)
		if text, ok := leaf.value.(string); ok && fits(text, field) {
			value, reason = strconv.Quote(text), reason+", without quotes"
		}
		return &Error{Setting: s.file + ": " + path, Value: value, Reason: reason}
	}
	return &Error{Setting: s.file, Reason: oneLine(err)}
}

// fits reports whether a text would be a value of an API type if it had no quotes.
func fits(text string, api reflect.Type) bool {
	return json.Valid([]byte(text)) && json.Unmarshal([]byte(text), reflect.New(api).Interface()) == nil
}

// A leaf is a value of a document that is not an object, or an empty one.
type leaf struct {
	path  []string
	value any
}

// leaves lists the leaves below value in the order of their paths.
func leaves(value any, path []string) []leaf {
	object, ok := value.(map[string]any)
	if !ok || len(object) == 0 {
		return []leaf{{path, value}}
	}
	var all []leaf
	for _, name := range slices.Sorted(maps.Keys(object)) {
		all = append(all, leaves(object[name], append(slices.Clip(path), name))...)
	}
	return all
}

// tree returns a document that holds this leaf alone.
func (l *leaf) tree() any {
	tree := l.value
	for _, name := range slices.Backward(l.path) {
		tree = map[string]any{name: tree}
	}
	return tree
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
	case nil:
		return true
	case bool:
		return !value
	case string:
		return value == "" || value == "0" || value == "0s"
	case int64:
		return value == 0
	case []any:
		return len(value) == 0
	case map[string]any:
		return true
	}
	return false
}

// deepest follows path through the fields of an API type and the keys of its maps, as far as they
// exist.
func deepest(api reflect.Type, path []string) (string, reflect.Type) {
	for i, name := range path {
		if api.Kind() == reflect.Map {
			return strings.Join(path[:i+1], "."), api.Elem()
		}
		field, found := fieldNamed(api, name)
		if !found {
			return strings.Join(path[:i], "."), api
		}
		api = field.Type
	}
	return strings.Join(path, "."), api
}

// fieldNamed finds a field of an API type by its name in a file.
func fieldNamed(api reflect.Type, name string) (field reflect.StructField, found bool) {
	if !isSection(api) {
		return field, false
	}
	for _, field := range reflect.VisibleFields(api) {
		if jsonName(field) == name {
			return field, true
		}
	}
	return field, false
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

// describe says what values of an API type look like.
func describe(api reflect.Type) string {
	if api.Kind() == reflect.Pointer {
		api = api.Elem()
	}
	switch {
	case api == reflect.TypeFor[metav1.Duration]():
		return "a duration such as 30s"
	case isSection(api):
		return "a section with fields"
	}
	switch api.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Int32:
		return "a whole number from -2147483648 to 2147483647"
	case reflect.Uint32:
		return "a whole number from 0 to 4294967295"
	case reflect.Float32:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "names with true or false"
	}
	return "another value"
}

// modeNFTables is kube-proxy's name for kube-nft's mode.
const modeNFTables = "nftables"

// A uselessField is a field of KubeProxyConfiguration, or a section, that has no effect here.
type uselessField struct {
	path     string
	harmless []string // values besides zero that are, or were, kube-proxy's defaults
}

// uselessFields lists fields of a KubeProxyConfiguration that somebody might miss, as "path value":
// fields for other modes and systems, and of older versions, with values other than their defaults.
// Of two entries that match, the first counts. iptables.localhostNodePorts has a notice of its own
// instead.
func uselessFields(tree map[string]any) []string {
	known := []uselessField{
		{"mode", []string{modeNFTables}},
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
	for _, leaf := range leaves(tree, nil) {
		path := strings.Join(leaf.path, ".")
		i := slices.IndexFunc(known, func(field uselessField) bool {
			return path == field.path || strings.HasPrefix(path, field.path+".")
		})
		if i >= 0 && !leaf.zero() && !slices.Contains(known[i].harmless, leaf.text()) {
			found = append(found, brief(path+" "+leaf.text()))
		}
	}
	return found
}
