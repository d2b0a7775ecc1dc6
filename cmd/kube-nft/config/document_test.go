package config

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nft/kube-nft/tracker/manifest"
)

// TestEveryField sets each field of both kinds alone to something else than its default: it
// must change the settings, or be reported as useless. None is lost in silence, also none
// that a later version of the API adds.
func TestEveryField(t *testing.T) {
	silent := []string{
		"apiVersion", "kind",
		"logging.flushFrequency", // lines are written at once
	}
	defaults := yamlOf(t, mustRead(t))
	for _, identity := range []struct {
		version, kind string
		api           reflect.Type
	}{
		{proxyVersion, proxyKind, reflect.TypeFor[proxyv1alpha1.KubeProxyConfiguration]()},
		{APIVersion, ownKind, reflect.TypeFor[KubeNFTConfiguration]()},
	} {
		for _, path := range fieldPaths(identity.api, "") {
			value, _ := fieldAt(reflect.New(identity.api).Elem(), path)
			field := value.Type()
			if field.Kind() == reflect.Pointer {
				field = field.Elem()
			}
			if isSection(field) || slices.Contains(silent, path) {
				continue
			}
			t.Run(identity.kind+"."+path, func(t *testing.T) {
				value := otherValue(t, path, field)
				for _, name := range slices.Backward(strings.Split(path, ".")) {
					value = map[string]any{name: value}
				}
				tree := value.(map[string]any)
				tree["apiVersion"], tree["kind"] = identity.version, identity.kind
				text, err := json.Marshal(tree)
				if err != nil {
					t.Fatal(err)
				}
				c := mustRead(t, "--config", writeFile(t, string(text)))
				if yamlOf(t, c) == defaults && !strings.Contains(strings.Join(c.Notices, "\n"), path) {
					t.Errorf("%s has no effect and is not reported", text)
				}
			})
		}
	}
}

// otherValue returns a valid value of the field that is not its default.
func otherValue(t *testing.T, path string, field reflect.Type) any {
	t.Helper()
	if value, found := map[string]any{
		"mode":                  "ipvs",
		"bindAddress":           "10.0.0.1",
		"healthzBindAddress":    "10.0.0.1:1",
		"metricsBindAddress":    "10.0.0.1:1",
		"clusterCIDR":           "10.0.0.0/8",
		"nodePortAddresses":     []string{"10.0.0.0/8"},
		"detectLocalMode":       "NodeCIDR",
		"logging.format":        "text",
		"logLevel":              "warn",
		"logFormat":             "console",
		"hostProc":              "/host/proc",
		"connectionsOfDeparted": "reset",
		"takeover":              "never",
		"tableOwnership":        "auto",
		"logging.verbosity":     4,
		"logging.vmodule":       []any{map[string]any{"filePattern": "a", "verbosity": 1}},
	}[path]; found {
		return value
	}
	if strings.HasSuffix(path, "infoBufferSize") {
		return "1Ki"
	}
	switch manifest.TypeName(field) {
	case "a duration such as 30s":
		return "3s"
	case "true or false":
		return true
	case "a string":
		return "x"
	case "a list":
		return []string{"10.0.0.0/8"}
	case "an object":
		return map[string]bool{"A": true}
	}
	if name := manifest.TypeName(field); strings.HasPrefix(name, "a number") || strings.HasPrefix(name, "a whole number") {
		return 7
	}
	t.Fatalf("no value for %s, a %s", path, field)
	return nil
}

// TestRetiredFields: what old versions wrote is accepted, and reported only if it was set.
func TestRetiredFields(t *testing.T) {
	file := proxyFile(t,
		"udpIdleTimeout: 1s\nresourceContainer: /other\nconntrack: {max: 5}\nipvs: {ExcludeCIDRs: [10.0.0.0/8]}\n")
	want := []string{
		file +
			`: no effect in kube-nft: conntrack.max 5, ipvs.ExcludeCIDRs ["10.0.0.0/8"], resourceContainer /other, udpIdleTimeout 1s`,
	}
	if c := mustRead(t, "--config", file); !slices.Equal(c.Notices, want) {
		t.Errorf("notices %q, want %q", c.Notices, want)
	}
}

// TestFileFormats: a file may be JSON, have empty documents, and have only one of the two kinds.
func TestFileFormats(t *testing.T) {
	for name, text := range map[string]string{
		"JSON": `{"apiVersion":"` + proxyVersion + `","kind":"` + proxyKind + `","nftables":{"masqueradeBit":3}}`,
		"separators": "---\n# first\n---\napiVersion: " + proxyVersion + "\nkind: " + proxyKind +
			"\nnftables: {masqueradeBit: 3}\n---\n",
		"CRLF": "apiVersion: " + proxyVersion + "\r\nkind: " + proxyKind + "\r\nnftables:\r\n  masqueradeBit: 3\r\n",
	} {
		if c := mustRead(t, "--config", writeFile(t, text)); c.MasqueradeBit != 3 {
			t.Errorf("%s: MasqueradeBit = %d, want 3", name, c.MasqueradeBit)
		}
	}
	own := "apiVersion: " + APIVersion + "\nkind: " + ownKind + "\naffinitySize: 9\n"
	if c := mustRead(t, "--config", writeFile(t, own)); c.AffinitySize != 9 {
		t.Errorf("AffinitySize = %d, want 9", c.AffinitySize)
	}
}

// FuzzParse: no file makes the reader fail in another way than with one line that names it,
// and what it accepts can be printed and read again.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\niptables: {syncPeriod: 1}\n",
		"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: " +
			"10.0.0.0/8\n---\napiVersion: kube-nft.github.io/v1alpha1\nkind: KubeNFTConfiguration\nminSyncPeriod: 0s\n",
		"a: &a [*a]", "{", "\x00", "- - -\n---\n...\n", "featureGates: {}\n? {}\n: 1",
		"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\"\\n\": 1\n",
	} {
		f.Add([]byte(seed))
	}
	for _, file := range []string{"defaulted", "ipvs", "kubeadm", "v1.10"} {
		seed, err := os.ReadFile("testdata/" + file + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		d, err := parse("FILE", content)
		if err != nil {
			if text := err.Error(); !strings.HasPrefix(text, "FILE: ") || strings.ContainsAny(text, "\n\r") {
				t.Fatalf("error %q", text)
			}
			return
		}
		r := newReader(t)
		read := &reading{document: *r.given, flags: r.flags, file: "FILE", fields: make(map[string]string)}
		read.merge(d)
		c, err := read.resolve()
		if err != nil {
			if text := err.Error(); strings.ContainsAny(text, "\n\r") {
				t.Fatalf("error %q", text)
			}
			return
		}
		checkRoundTrip(t, c)
	})
}
