// Package schema holds the JSON schemas of documents, docs/schema/KIND.json, to the Go types that are printed: a test
// calls Check with a document of each kind.
package schema

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/integration/lab"
)

const module = "github.com/kube-nft/kube-nft"

// Check compares docs/schema/KIND.json with the schema of a document's type, or rewrites it.
func Check(t *testing.T, update bool, kind string, document any) {
	t.Helper()
	g := generator{t: t, definitions: make(map[string]any), comments: make(map[string]string)}
	typ := reflect.TypeOf(document)
	g.parse(typ)
	s := g.object(typ)
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", kind
	s["description"] = "A document of kind " + kind + " as kube-nft prints it. New fields may come in any version."
	properties := s["properties"].(map[string]any)
	properties["apiVersion"] = map[string]any{"const": config.APIVersion}
	properties["kind"] = map[string]any{"const": kind}
	s["required"] = append([]string{"apiVersion", "kind"}, s["required"].([]string)...)
	if len(g.definitions) > 0 {
		s["$defs"] = g.definitions
	}
	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(s); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(lab.Path(t, "docs"), "schema", kind+".json")
	if update {
		if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not the schema of %s (%v): make golden rewrites it", path, typ, err)
	}
}

// A generator makes the schema of one document.
type generator struct {
	t           *testing.T
	definitions map[string]any
	comments    map[string]string // of fields, by package, type and name
}

var (
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	embeddedType  = reflect.TypeFor[metav1.TypeMeta]()
)

// value is the schema of a type's values.
func (g *generator) value(typ reflect.Type) map[string]any {
	switch {
	case typ == reflect.TypeFor[time.Time](), typ == reflect.TypeFor[metav1.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case typ == reflect.TypeFor[json.RawMessage](), typ.Kind() == reflect.Interface:
		return map[string]any{} // anything
	case typ.Implements(textMarshaler):
		return map[string]any{"type": "string"}
	case typ.Implements(jsonMarshaler):
		g.t.Fatalf("%s has an encoding of its own, which integration/schema does not know", typ)
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return g.value(typ.Elem())
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Slice, reflect.Array:
		return map[string]any{"type": "array", "items": g.value(typ.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": g.value(typ.Elem())}
	case reflect.Struct:
		return g.definition(typ)
	}
	g.t.Fatalf("%s cannot be in a document", typ)
	return nil
}

// definition is a reference to the schema of a struct.
func (g *generator) definition(typ reflect.Type) map[string]any {
	name := strings.ReplaceAll(strings.TrimPrefix(typ.String(), "*"), ".", "-")
	if g.definitions[name] == nil {
		g.definitions[name] = true // in case it contains itself
		g.parse(typ)
		g.definitions[name] = g.object(typ)
	}
	return map[string]any{"$ref": "#/$defs/" + name}
}

// object is the schema of a struct or of a pointer to one.
func (g *generator) object(typ reflect.Type) map[string]any {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	properties, required := make(map[string]any), []string{}
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && name == "" {
			if field.Type != embeddedType {
				g.parse(field.Type)
				inner := g.object(field.Type)
				for name, property := range inner["properties"].(map[string]any) {
					properties[name] = property
				}
				required = append(required, inner["required"].([]string)...)
			}
			continue
		}
		if name == "-" || !field.IsExported() {
			continue
		}
		if name == "" {
			name = field.Name
		}
		property := g.value(field.Type)
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			required = append(required, name)
			if kind := field.Type.Kind(); kind == reflect.Slice || kind == reflect.Map || kind == reflect.Pointer {
				property = map[string]any{"anyOf": []any{property, map[string]any{"type": "null"}}}
			}
		}
		if comment := g.comments[fieldKey(typ, field.Name)]; comment != "" {
			property["description"] = comment
		}
		properties[name] = property
	}
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

func fieldKey(typ reflect.Type, field string) string {
	return typ.PkgPath() + "." + typ.Name() + "." + field
}

// parse reads the comments of a struct's fields from its package.
func (g *generator) parse(typ reflect.Type) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	dir, ours := strings.CutPrefix(typ.PkgPath(), module+"/")
	if !ours {
		return
	}
	files, err := filepath.Glob(filepath.Join(lab.Path(g.t, dir), "*.go"))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			g.t.Fatal(fmt.Errorf("%s: %w", path, err))
		}
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.TypeSpec)
			if !ok || spec.Name.Name != typ.Name() {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					text := strings.Join(strings.Fields(field.Doc.Text()+" "+field.Comment.Text()), " ")
					for _, name := range field.Names {
						g.comments[fieldKey(typ, name.Name)] = text
					}
				}
			}
			return false
		})
	}
}
