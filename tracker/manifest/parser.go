package manifest

import (
	"bytes"
	gojson "encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// seed is fixed so that documents hash alike in every version of a file.
var seed = maphash.MakeSeed()

// A cache holds what the documents of a file define, by the hash of their text: after an edit, only
// edited documents are decoded again.
type cache map[uint64][]object

// A parser reads the documents of one file.
type parser struct {
	path    string
	old     cache // of the version before
	cache   cache
	objects []object
	notices []string
	skipped map[string]int // objects of other kinds, by apiVersion and kind
	remarks int            // notices and skipped objects so far
}

// yaml reads a stream of YAML documents.
func (p *parser) yaml(content []byte) error {
	for _, document := range split(content) {
		if err := p.document(document, yamlToJSON); err != nil {
			return err
		}
	}
	return nil
}

// json reads a sequence of JSON documents.
func (p *parser) json(content []byte) error {
	content = bytes.TrimPrefix(content, utf8Mark)
	decoder := gojson.NewDecoder(bytes.NewReader(content))
	lines := lineCounter{content: content}
	for {
		var text gojson.RawMessage
		err := decoder.Decode(&text)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			line := lines.at(jsonOffset(err, decoder.InputOffset(), len(content)))
			return fmt.Errorf("%s: %s", position{p.path, line}, jsonText(err))
		}
		line := lines.at(int(decoder.InputOffset()) - len(text))
		if err := p.document(document{text: text, start: line, line: line}, asIs); err != nil {
			return err
		}
	}
}

// document reads one document; convert turns it into JSON.
func (p *parser) document(d document, convert func(document) ([]byte, int, error)) error {
	hash := maphash.Bytes(seed, d.text)
	at := position{p.path, d.line}
	if known, found := p.old[hash]; found {
		known = slices.Clone(known)
		for i := range known {
			known[i].position = at
		}
		p.cache[hash] = known
		p.objects = append(p.objects, known...)
		return nil
	}
	data, line, err := convert(d)
	if err != nil {
		return fmt.Errorf("%s: %s", position{p.path, line}, yamlText(err))
	}
	first, remarks := len(p.objects), p.remarks
	if err := p.value(data, at, "", metav1.TypeMeta{}); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if p.remarks == remarks { // else they are made again for the next version
		p.cache[hash] = slices.Clone(p.objects[first:])
	}
	return nil
}

// value reads an object or a List in JSON. field is its place in the document. usual is the type of
// a List's item that does not say its own.
func (p *parser) value(data []byte, at position, field string, usual metav1.TypeMeta) error {
	var head struct {
		metav1.TypeMeta
		Items []gojson.RawMessage `json:"items"`
	}
	if string(bytes.TrimSpace(data)) == "null" {
		return nil
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return fmt.Errorf("%s%s", field, typeError(data, &head, err))
	}
	if head.Kind == "" && head.APIVersion == "" {
		head.TypeMeta = usual
	}
	if head.Kind == "" || head.APIVersion == "" {
		return fmt.Errorf("%sapiVersion and kind are missing: expected for instance v1 and Service", field)
	}
	if item, ok := strings.CutSuffix(head.Kind, "List"); ok {
		for i, data := range head.Items {
			usual := metav1.TypeMeta{APIVersion: head.APIVersion, Kind: item}
			if err := p.value(data, at, fmt.Sprintf("%sitems[%d].", field, i), usual); err != nil {
				return err
			}
		}
		return nil
	}
	return p.object(data, at, field, head.TypeMeta)
}

// object reads one object that is not a List.
func (p *parser) object(data []byte, at position, field string, kind metav1.TypeMeta) error {
	empty := kinds[kind]
	if empty == nil {
		p.skipped[kind.APIVersion+" "+kind.Kind]++
		p.remarks++
		return nil
	}
	value := empty()
	strict, err := json.UnmarshalStrict(data, value)
	if err != nil {
		return fmt.Errorf("%s%s", field, typeError(data, empty(), err))
	}
	if value.GetName() == "" {
		return fmt.Errorf("%smetadata.name is missing", field)
	}
	setDefaults(value)
	name := id{kind: kind.Kind, namespace: value.GetNamespace(), name: value.GetName()}
	p.remarks += len(strict)
	for _, err := range strict {
		p.notices = append(p.notices, fmt.Sprintf("%s: %s: %s%v; it is ignored", at, name, field, err))
	}
	p.objects = append(p.objects, object{id: name, position: at, value: value})
	return nil
}

// summary returns the notices, with one for all objects of other kinds.
func (p *parser) summary() []string {
	if len(p.skipped) == 0 {
		return p.notices
	}
	var counts []string
	for _, kind := range slices.Sorted(maps.Keys(p.skipped)) {
		counts = append(counts, fmt.Sprintf("%d %s", p.skipped[kind], kind))
	}
	return append(p.notices, fmt.Sprintf("%s: skipped objects of other kinds: %s", p.path,
		strings.Join(counts, ", ")))
}

// asIs converts JSON: not at all.
func asIs(d document) ([]byte, int, error) {
	return d.text, d.line, nil
}

// yamlLine finds the line number in an error of the YAML library.
var yamlLine = regexp.MustCompile(`line (\d+): `)

// yamlToJSON converts a document; line is the line in the file of an error.
func yamlToJSON(d document) ([]byte, int, error) {
	if d.text[0] == '{' && gojson.Valid(d.text) {
		return d.text, d.line, nil
	}
	data, err := yaml.YAMLToJSONStrict(d.text)
	if err == nil {
		return data, d.line, nil
	}
	match := yamlLine.FindStringSubmatch(err.Error())
	if match == nil {
		return nil, d.line, err
	}
	line, _ := strconv.Atoi(match[1]) // digits
	return nil, d.start + line - 1, err
}

// yamlText returns the YAML library's text in one line. It drops the library's preamble, and the
// line number, which counts from the document's beginning.
func yamlText(err error) string {
	text := err.Error()
	for _, preamble := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:"} {
		text = strings.TrimPrefix(text, preamble)
	}
	return strings.Join(strings.Fields(yamlLine.ReplaceAllString(text, "")), " ")
}

// typeError describes why data does not fit into value: the field, what was found and what is
// expected.
func typeError(data []byte, value any, err error) string {
	switch wrong := TypeError(data, value); {
	case wrong == nil:
		return jsonText(err)
	case wrong.Field == "":
		return fmt.Sprintf("found a %s, expected %s", wrong.Value, TypeName(wrong.Type))
	default:
		return fmt.Sprintf("%s is a %s, expected %s", wrong.Field, wrong.Value, TypeName(wrong.Type))
	}
}

// TypeError returns the first field of data whose type prevents decoding into value; nil if there is none.
// The decoder that Kubernetes uses hides the details, and the standard one shows them.
func TypeError(data []byte, value any) *gojson.UnmarshalTypeError {
	wrong, _ := errors.AsType[*gojson.UnmarshalTypeError](gojson.Unmarshal(data, value))
	return wrong
}

// TypeName returns a user's name for a Go type.
func TypeName(t reflect.Type) string {
	if t == reflect.TypeFor[metav1.Duration]() {
		return "a duration such as 30s"
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int32:
		return fmt.Sprintf("a whole number from %d to %d", math.MinInt32, math.MaxInt32)
	case reflect.Uint32:
		return fmt.Sprintf("a whole number from 0 to %d", uint32(math.MaxUint32))
	}
	return "a number"
}

// jsonText returns err in one line without the library's name.
func jsonText(err error) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "json: ")), " ")
}

// jsonOffset returns the place of err in the content.
func jsonOffset(err error, read int64, length int) int {
	if syntax, ok := errors.AsType[*gojson.SyntaxError](err); ok {
		read = syntax.Offset
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return length
	}
	return min(int(read), length)
}
