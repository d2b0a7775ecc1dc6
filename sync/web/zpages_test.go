package web

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

func answerOf(t testing.TB, p *Page, accept string) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequest("GET", "/", nil)
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, request)
	return w
}

// TestPageNegotiation holds the choice between text and object to what kube-proxy 1.36.2 answered
// to the same requests.
func TestPageNegotiation(t *testing.T) {
	status := Status{Started: time.Now().Add(-3723 * time.Second), GoVersion: "go1", BinaryVersion: "1.2.3",
		Follows: "1.37", Paths: []string{"/configz"}}
	const object = ";v=v1beta1;g=config.k8s.io;as=Statusz"
	for _, tt := range []struct {
		accept, contentType string
		code                int
	}{
		{"", "text/plain; charset=utf-8", 200},
		{"*/*", "text/plain; charset=utf-8", 200},
		{"text/plain", "text/plain; charset=utf-8", 200},
		{"text/html, */*;q=0.1", "text/plain; charset=utf-8", 200},
		{"application/json, text/plain", "text/plain; charset=utf-8", 200},
		{"application/json" + object, "application/json;g=config.k8s.io;v=v1beta1;as=Statusz", 200},
		{"application/json" + object + ", text/plain", "application/json;g=config.k8s.io;v=v1beta1;as=Statusz", 200},
		{"application/yaml" + object, "application/yaml;g=config.k8s.io;v=v1beta1;as=Statusz", 200},
		{"application/json;v=v1alpha1;g=config.k8s.io;as=Statusz", "application/json;g=config.k8s.io;v=v1alpha1;as=Statusz",
			200},
		{"application/json", "application/json", 406},
		{"application/json;v=v1;g=config.k8s.io;as=Statusz", "application/json", 406},
		{"application/json;v=v1beta1;g=config.k8s.io;as=Flagz", "application/json", 406},
		{"application/xml", "application/json", 406},
	} {
		w := answerOf(t, status.Page(), tt.accept)
		if w.Code != tt.code || w.Header().Get("Content-Type") != tt.contentType {
			t.Errorf("%q: got %d, %s; want %d, %s", tt.accept, w.Code, w.Header().Get("Content-Type"), tt.code, tt.contentType)
		}
		if old := strings.Contains(tt.contentType, "v1alpha1"); (w.Header().Get("Warning") != "") != old {
			t.Errorf("%q: Warning %q", tt.accept, w.Header().Get("Warning"))
		}
		if !strings.HasPrefix(tt.contentType, "application/json") {
			continue
		}
		var object struct {
			Kind, APIVersion string
			Metadata         struct{ Name string }
			UptimeSeconds    int
			Paths            []string
			Code             int
		}
		if err := json.Unmarshal(w.Body.Bytes(), &object); err != nil {
			t.Fatal(err)
		}
		if tt.code == 200 && (object.Kind != "Statusz" || object.Metadata.Name != "kube-nft" ||
			object.UptimeSeconds != 3723 || len(object.Paths) != 1) ||
			tt.code != 200 && (object.Kind != "Status" || object.Code != 406) {
			t.Errorf("%q: %+v", tt.accept, object)
		}
	}
	if text := answerOf(t, status.Page(), "").Body.String(); !strings.Contains(text,
		"\nUp: 1 hr 02 min 03 sec\nGo version: go1\nBinary version: 1.2.3\nEmulation version: 1.37\nPaths: /configz\n") {
		t.Errorf("text %s", text)
	}
}

func TestFlagsPage(t *testing.T) {
	p := FlagsPage(map[string]string{"v": "2", "config": "/f", "empty": ""})
	if text := answerOf(t, p, "").Body.String(); !strings.HasSuffix(text, "\nconfig=/f\nempty=\nv=2\n") {
		t.Errorf("text %q", text)
	}
	var object struct{ Flags map[string]string }
	body := answerOf(t, p, "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz").Body.Bytes()
	if err := yaml.Unmarshal(body, &object); err != nil || object.Flags["v"] != "2" || len(object.Flags) != 3 {
		t.Errorf("%v: %s", err, body)
	}
}

// FuzzAccept: no header makes a page fail in another way than with 406.
func FuzzAccept(f *testing.F) {
	for _, seed := range []string{"", "*/*", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz", ";;,=/;q=x",
		"*;q=0", "a/b;c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		w := answerOf(t, FlagsPage(nil), accept)
		if w.Code != 200 && w.Code != 406 || w.Body.Len() == 0 {
			t.Fatalf("%q: %d, %q", accept, w.Code, w.Body)
		}
	})
}
