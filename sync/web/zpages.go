package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"sigs.k8s.io/yaml"
)

// A Page is a page for people that programs can have as an object of the group config.k8s.io, as
// components of Kubernetes serve /statusz and /flagz from 1.36 on (KEP-4827, KEP-4828). A request
// whose header Accept does not name the object gets the text.
type Page struct {
	Kind string
	Text func() string
	// Fields returns the fields of the object besides kind, apiVersion and metadata.
	Fields func() map[string]any
}

// Versions of the objects; the last one is deprecated.
const (
	pageGroup        = "config.k8s.io"
	pageVersion      = "v1beta1"
	pageVersionOlder = "v1alpha1"
)

// component is the name of the objects.
const component = "kube-nft"

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	format, version := p.negotiate(r.Header.Get("Accept"))
	if format == "text/plain" {
		w.Header().Set("Content-Type", plain)
		fmt.Fprint(w, p.Text()) // fails only if the client is gone, here and below
		return
	}
	code, object := http.StatusOK, map[string]any{}
	switch format {
	case "":
		format, code = "application/json", http.StatusNotAcceptable
		w.Header().Set("Content-Type", format)
		object = map[string]any{
			"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure", "reason": "NotAcceptable",
			"code": code,
			"message": fmt.Sprintf("expected an Accept of text/plain, or of application/json or application/yaml with "+
				";g=%s;v=%s;as=%s", pageGroup, pageVersion, p.Kind),
		}
	default:
		w.Header().Set("Content-Type", fmt.Sprintf("%s;g=%s;v=%s;as=%s", format, pageGroup, version, p.Kind))
		if version == pageVersionOlder {
			w.Header().Set("Warning", fmt.Sprintf("299 - %q", "version "+version+" is deprecated, ask for "+pageVersion))
		}
		maps.Copy(object, p.Fields())
		object["kind"], object["apiVersion"], object["metadata"] = p.Kind, pageGroup+"/"+version,
			map[string]string{"name": component}
	}
	text, err := json.MarshalIndent(object, "", "  ")
	if err == nil && format == "application/yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(code)
	w.Write(append(bytes.TrimRight(text, "\n"), '\n'))
}

// negotiate returns the media type of the answer and, of an object, its version; nothing if the client
// takes neither text nor object.
func (p *Page) negotiate(accept string) (format, version string) {
	if strings.TrimSpace(accept) == "" {
		return "text/plain", ""
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		takes := func(kind, subkind string) bool {
			return (clause.Type == "*" || clause.Type == kind) && (clause.SubType == "*" || clause.SubType == subkind)
		}
		group, version, as := clause.Params["g"], clause.Params["v"], clause.Params["as"]
		object := group == pageGroup && as == p.Kind && slices.Contains([]string{pageVersion, pageVersionOlder}, version)
		switch {
		case object && takes("application", "json"):
			return "application/json", version
		case object && takes("application", "yaml"):
			return "application/yaml", version
		case group+version+as == "" && takes("text", "plain"):
			return "text/plain", ""
		}
	}
	return "", ""
}

// title begins a page for people.
func title(name string) string {
	return fmt.Sprintf("\n%s %s\nFor people. A program asks for the object instead, for this text may change.\n",
		component, name)
}

// A Status is what /statusz tells.
type Status struct {
	Started       time.Time
	GoVersion     string
	BinaryVersion string
	// Follows is the release of Kubernetes whose kube-proxy this build follows.
	Follows string
	Paths   []string
}

// Page returns /statusz.
func (s *Status) Page() *Page {
	uptime := func() int64 { return int64(max(0, time.Since(s.Started)).Seconds()) }
	return &Page{
		Kind: "Statusz",
		Text: func() string {
			up := uptime()
			return title("statusz") +
				fmt.Sprintf("\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\nEmulation version: "+
					"%s\nPaths: %s\n",
					s.Started.UTC().Format(time.UnixDate), up/3600, up/60%60, up%60, s.GoVersion, s.BinaryVersion, s.Follows,
					strings.Join(s.Paths, " "))
		},
		Fields: func() map[string]any {
			return map[string]any{
				"startTime": s.Started.UTC().Format(time.RFC3339), "uptimeSeconds": uptime(),
				"goVersion": s.GoVersion, "binaryVersion": s.BinaryVersion, "emulationVersion": s.Follows, "paths": s.Paths,
			}
		},
	}
}

// FlagsPage returns /flagz: the values of flags by name.
func FlagsPage(flags map[string]string) *Page {
	return &Page{
		Kind: "Flagz",
		Text: func() string {
			var b strings.Builder
			b.WriteString(title("flagz"))
			for _, name := range slices.Sorted(maps.Keys(flags)) {
				fmt.Fprintf(&b, "%s=%s\n", name, flags[name])
			}
			return b.String()
		},
		Fields: func() map[string]any { return map[string]any{"flags": flags} },
	}
}
