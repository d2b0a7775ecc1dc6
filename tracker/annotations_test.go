package tracker

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

var updateAnnotations = flag.Bool("update", false, "rewrite the table of docs/annotations.md")

// annotated gives a Service annotations of ours: names and values in turns.
func annotated(pairs ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		if s.Annotations == nil {
			s.Annotations = make(map[string]string)
		}
		for i := 0; i < len(pairs); i += 2 {
			s.Annotations[AnnotationPrefix+pairs[i]] = pairs[i+1]
		}
	}
}

func TestReadAnnotations(t *testing.T) {
	type settings struct{ word, number int }
	table := []annotation[settings]{
		{name: "number", most: 65535, set: func(s *settings, value int) { s.number = value }},
		{name: "word", words: []string{"keep", "cut", "drop"}, set: func(s *settings, value int) { s.word = value }},
	}
	const unset = -1
	tests := []struct {
		name, key, value string
		want             settings
		refused          string // after "Service shop/web: metadata.annotations[KEY]: "
	}{
		{"first word", "kube-nft.io/word", "keep", settings{0, unset}, ""},
		{"last word", "kube-nft.io/word", "drop", settings{2, unset}, ""},
		{"zero", "kube-nft.io/number", "0", settings{unset, 0}, ""},
		{"most", "kube-nft.io/number", "65535", settings{unset, 65535}, ""},
		{"another program's", "example.org/word", "x", settings{unset, unset}, ""},
		{"no prefix", "word", "x", settings{unset, unset}, ""},
		{"unknown word", "kube-nft.io/word", "Keep", settings{unset, unset},
			`"Keep" is not keep, cut or drop; the annotation is ignored`},
		{"empty", "kube-nft.io/word", "", settings{unset, unset}, `"" is not keep, cut or drop; the annotation is ignored`},
		{"blank", "kube-nft.io/word", " keep", settings{unset, unset},
			`" keep" is not keep, cut or drop; the annotation is ignored`},
		{"control characters", "kube-nft.io/word", "\x1b[2J\n", settings{unset, unset},
			`"\x1b[2J\n" is not keep, cut or drop; the annotation is ignored`},
		{"long", "kube-nft.io/word", strings.Repeat("k", 1<<18), settings{unset, unset},
			`"` + strings.Repeat("k", 64) + `"... is not keep, cut or drop; the annotation is ignored`},
		{"too much", "kube-nft.io/number", "65536", settings{unset, unset},
			`"65536" is not a whole number from 0 to 65535; the annotation is ignored`},
		{"negative", "kube-nft.io/number", "-1", settings{unset, unset},
			`"-1" is not a whole number from 0 to 65535; the annotation is ignored`},
		{"two spellings", "kube-nft.io/number", "007", settings{unset, unset},
			`"007" is not a whole number from 0 to 65535; the annotation is ignored`},
		{"very long number", "kube-nft.io/number", strings.Repeat("9", 99), settings{unset, unset},
			`"` + strings.Repeat("9", 64) + `"... is not a whole number from 0 to 65535; the annotation is ignored`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := invalidFields{kind: kindService, namespace: "shop", name: "web"}
			got := settings{unset, unset}
			readAnnotations(table, map[string]string{tt.key: tt.value}, &got, &r)
			want := ""
			if tt.refused != "" {
				want = "Service shop/web: metadata.annotations[" + tt.key + "]: " + tt.refused
			}
			if text := errorText(r.err()); got != tt.want || text != want {
				t.Errorf("got %v and\n%s\nwant %v and\n%s", got, text, tt.want, want)
			}
		})
	}
}

// TestUnknownAnnotations misspells keys.
func TestUnknownAnnotations(t *testing.T) {
	for key, field := range map[string]string{
		"kube-nft.io/udp-unreddy": "kube-nft.io/udp-unreddy",
		"Kube-NFT.io/udp-unready": "Kube-NFT.io/udp-unready",
		"kube-nft.io/":            "kube-nft.io/",
		"kube-nft.io/\x1b[2J":     `"kube-nft.io/\x1b[2J"`,
		AnnotationPrefix + strings.Repeat("x", 1<<18): `"` + AnnotationPrefix +
			strings.Repeat("x", maxQuoted-len(AnnotationPrefix)) + `"...`,
		AnnotationPrefix + "udp-unready/" + "udp-unready": "kube-nft.io/udp-unready/udp-unready",
	} {
		err := newTracker(Config{}).SetService(newService(func(s *corev1.Service) {
			s.Annotations = map[string]string{key: "keep"}
		}))
		want := "Service shop/web: metadata.annotations[" + field + "]: is not known; objects of kind Service can have "
		if text := errorText(err); !strings.HasPrefix(text, want) || !strings.Contains(text, "kube-nft.io/udp-unready") {
			t.Errorf("%s\nwant\n%s...", text, want)
		}
	}
	part := newSlice("web-1", newEndpoint("10.0.0.1"))
	part.UID, part.Annotations = "uid-slice", map[string]string{"kube-nft.io/udp-unready": "keep"}
	err := newTracker(Config{}).SetSlice(part)
	want := "EndpointSlice shop/web-1: metadata.annotations[kube-nft.io/udp-unready]: belongs to objects of kind " +
		"Service; it is ignored"
	if got := errorText(err); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if field, ok := errors.AsType[*InvalidField](err); !ok || field.UID != "uid-slice" {
		t.Errorf("%+v has no UID", field)
	}
}

// TestManyAnnotations writes as many as the API lets an object have.
func TestManyAnnotations(t *testing.T) {
	err := newTracker(Config{}).SetService(newService(func(s *corev1.Service) {
		s.Annotations = make(map[string]string)
		for i := range 1 << 14 {
			s.Annotations[fmt.Sprint(AnnotationPrefix, i)] = "x"
		}
	}))
	if lines := strings.Count(errorText(err), "\n"); lines != maxInvalid {
		t.Errorf("%d lines, want %d:\n%v", lines, maxInvalid, err)
	}
}

// TestUnknownValueIsAbsence changes a value that is known to one that is not: the Service is what it is
// without the annotation, as it would be after a restart.
func TestUnknownValueIsAbsence(t *testing.T) {
	tr := newTracker(Config{Defaults: Settings{KeepUnreadyUDP: true}})
	for _, step := range []struct {
		edit func(*corev1.Service)
		want bool
	}{
		{annotated("udp-unready", "cut"), false},
		{annotated("udp-unready", "off"), true},
		{annotated("udp-unready", "cut"), false},
		{func(*corev1.Service) {}, true},
	} {
		_ = tr.SetService(newService(step.edit))
		tr.Take()
		if p := tr.entries[objectName{"shop", "web"}].out[0]; p.Settings.KeepUnreadyUDP != step.want {
			t.Errorf("%+v, want %v", p.Settings, step.want)
		}
	}
}

// TestUnreadyUDP says which endpoints keep their flows.
func TestUnreadyUDP(t *testing.T) {
	for _, tt := range []struct {
		protocol         corev1.Protocol
		value            string
		cluster, serving string
	}{
		{"UDP", "cut", "1", "1 2"},
		{"UDP", "keep", "1", "1 2 3 4"},
		{"TCP", "keep", "1", "1 2"},
	} {
		tr := newTracker(Config{})
		must(t, tr.SetService(newService(annotated("udp-unready", tt.value),
			func(s *corev1.Service) { s.Spec.Ports[0].Protocol = tt.protocol })))
		part := newSlice("web-1", octetEndpoints([]string{"1", "2 notready", "3 notready notserving",
			"4 notready notserving terminating"})...)
		part.Ports[0].Protocol = &tt.protocol
		must(t, tr.SetSlice(part))
		p := only(t, tr.Take())
		if octets(p.Cluster) != tt.cluster || octets(p.Serving) != tt.serving {
			t.Errorf("%s %s: Cluster %v, Serving %v", tt.protocol, tt.value, p.Cluster, p.Serving)
		}
	}
}

// TestFallbackKeepsHealthCheckFailing: with local-fallback, the health-check node port still reports no local endpoint.
func TestFallbackKeepsHealthCheckFailing(t *testing.T) {
	tr := newTracker(Config{})
	must(t, tr.SetService(newService(balanced("198.51.100.1"), externalLocal, annotated("local-fallback", "cluster"))))
	must(t, tr.SetSlice(newSlice("web-1", newEndpoint("10.0.0.1 node=node-b"))))
	if p := only(t, tr.Take()); p.HealthCheckNodePort != 32000 || p.LocalReady != 0 || len(p.Cluster) != 1 {
		t.Errorf("%+v", p)
	}
}

// TestNodePortRanges says for which node ports source ranges hold, and which.
func TestNodePortRanges(t *testing.T) {
	ranges := func(list ...string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges, s.Spec.Ports[0].NodePort = corev1.ServiceTypeLoadBalancer, list, 30080
		}
	}
	for _, tt := range []struct {
		name             string
		defaults         bool
		edits            []func(*corev1.Service)
		limited, atNode  bool
		nodePort         uint16
		sources, invalid int
	}{
		{"not asked for", false, []func(*corev1.Service){ranges("10.0.0.0/8")}, false, false, 30080, 0, 0},
		{"without a load balancer yet", false, []func(*corev1.Service){ranges("10.0.0.0/8"),
			annotated("source-ranges-for-node-ports", "true")}, true, true, 30080, 1, 0},
		{"by the flag", true, []func(*corev1.Service){ranges("10.0.0.0/8"), balanced("198.51.100.1")}, true, true,
			30080, 1, 0},
		{"by the flag, but not this one", true, []func(*corev1.Service){ranges("10.0.0.0/8"), balanced("198.51.100.1"),
			annotated("source-ranges-for-node-ports", "false")}, true, false, 30080, 1, 0},
		{"all clients", true, []func(*corev1.Service){ranges("0.0.0.0/0")}, false, false, 30080, 0, 0},
		{"ranges of the other family", true, []func(*corev1.Service){ranges("fd00::/8")}, false, false, 30080, 0, 0},
		{"no range is valid", true, []func(*corev1.Service){ranges("10.0.0.0/99")}, false, false, 0, 0, 2},
		{"no range is valid, and it is not asked for", false, []func(*corev1.Service){ranges("10.0.0.0/99")}, false, false,
			30080, 0, 2},
	} {
		tr := newTracker(Config{Defaults: Settings{SourceRangesForNodePorts: tt.defaults}})
		err := tr.SetService(newService(tt.edits...))
		p := only(t, tr.Take())
		if p.HasSourceRanges != tt.limited || p.RangesForNodePort != tt.atNode || p.NodePort != tt.nodePort ||
			len(p.Sources) != tt.sources {
			t.Errorf("%s: %+v", tt.name, p)
		}
		if invalid := len(strings.FieldsFunc(errorText(err), func(c rune) bool {
			return c == '\n'
		})); invalid != tt.invalid {
			t.Errorf("%s: %d invalid, want %d: %v", tt.name, invalid, tt.invalid, err)
		}
	}
}

// TestAnnotationTables holds the tables to what their documentation needs.
func TestAnnotationTables(t *testing.T) {
	var keys []string
	for _, a := range Annotations() {
		keys = append(keys, a.Kind+" "+a.Key)
		if a.Values == "" || a.Default == "" || a.Meaning == "" || len(a.Key) > maxQuoted {
			t.Errorf("%+v", a)
		}
	}
	slices.SortStableFunc(keys, func(a, b string) int { return -strings.Compare(a[:7], b[:7]) })
	for i := 1; i < len(keys); i++ {
		if keys[i-1][:7] == keys[i][:7] && keys[i-1] >= keys[i] {
			t.Errorf("%s is not before %s", keys[i-1], keys[i])
		}
	}
}

// TestAnnotationsAreDocumented compares the table of docs/annotations.md with the tables of this package; -update
// rewrites it.
func TestAnnotationsAreDocumented(t *testing.T) {
	const path, begin, end = "../docs/annotations.md", "<!-- annotations -->\n", "<!-- end of annotations -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	table, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q or %q", path, begin, end)
	}
	want := "| annotation | of | values | without it | what it decides |\n|---|---|---|---|---|\n"
	for _, a := range Annotations() {
		want += fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", a.Key, a.Kind, a.Values, a.Default, a.Meaning)
	}
	if *updateAnnotations {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if table != want {
		t.Errorf("the table of %s differs from the code; make golden accepts it:\n%s",
			path, want)
	}
	for _, a := range Annotations() {
		if !strings.Contains(after, "`"+a.Key) {
			t.Errorf("%s says nothing of %s but the table", path, a.Key)
		}
	}
}

// TestManyUnknownAnnotations: a Service may have 15,000 of them, and only the first are reported. The others take
// little: no text is made for them.
func TestManyUnknownAnnotations(t *testing.T) {
	allocated := func(n int) float64 {
		annotations := make(map[string]string)
		for i := range n {
			annotations[fmt.Sprint(AnnotationPrefix, "x", i)] = ""
		}
		return testing.AllocsPerRun(10, func() {
			refused := &invalidFields{kind: "Service"}
			readAnnotations(serviceAnnotations, annotations, new(Settings), refused)
			if got := len(refused.list) + refused.left; got != n {
				t.Errorf("%d annotations refused, want %d", got, n)
			}
		})
	}
	if each := (allocated(1100) - allocated(100)) / 1000; each > 10 {
		t.Errorf("%.1f allocations for each unknown annotation", each)
	}
}

// FuzzAnnotations puts hostile keys and values on a Service and an EndpointSlice.
func FuzzAnnotations(f *testing.F) {
	for _, a := range Annotations() {
		f.Add(a.Key, a.Default)
		f.Add(a.Key, "1")
	}
	f.Add("KUBE-NFT.IO/\x00", "\x1b]0;\a")
	f.Fuzz(func(t *testing.T, key, value string) {
		tr := newNeighbour(t)
		err := tr.SetService(newService(func(s *corev1.Service) { s.Annotations = map[string]string{key: value} }))
		part := newSlice("web-1", newEndpoint("10.0.0.3"))
		part.Annotations = map[string]string{key: value}
		err = errors.Join(err, tr.SetSlice(part))
		for _, c := range errorText(err) {
			if unicode.IsControl(c) && c != '\n' {
				t.Errorf("control character %q in %q", c, err)
			}
		}
		if len(errorText(err)) > 4096 {
			t.Errorf("an error of %d bytes", len(errorText(err)))
		}
		if (err != nil) != IsAnnotation(key) && !known(key) {
			t.Errorf("%q: refused: %v", key, err)
		}
		checkHostile(t, tr, err)
	})
}

// known reports whether some object can have the annotation key.
func known(key string) bool {
	return slices.ContainsFunc(Annotations(), func(a Annotation) bool { return a.Key == key })
}
