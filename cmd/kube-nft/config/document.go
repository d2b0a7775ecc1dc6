package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	utiljson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/nft/words"
)

// KubeNFTConfiguration holds the settings that kube-proxy's configuration lacks. An empty field
// counts as left out; the flag of the same name documents it.
type KubeNFTConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	Manifests          string   `json:"manifests,omitempty"`
	Master             string   `json:"master,omitempty"`
	ServiceCIDRs       []string `json:"serviceCIDRs,omitempty"` // --service-cidr
	ServiceProxyName   string   `json:"serviceProxyName,omitempty"`
	LocalhostNodePorts *bool    `json:"localhostNodePorts,omitempty"` // --localhost-nodeports
	ExternalIPs        []string `json:"externalIPs,omitempty"`
	// MinSyncPeriod wins over nftables.minSyncPeriod, and can be 0s, for no pause at all.
	MinSyncPeriod              *metav1.Duration `json:"minSyncPeriod,omitempty"`
	AffinitySize               uint32           `json:"affinitySize,omitempty"`
	NamespaceQuota             uint32           `json:"namespaceQuota,omitempty"`
	ConnectionCounters         bool             `json:"connectionCounters,omitempty"`
	EndpointConnectionCounters bool             `json:"endpointConnectionCounters,omitempty"`
	ConnectionsOfDeparted      string           `json:"connectionsOfDeparted,omitempty"`
	FlowMetrics                bool             `json:"flowMetrics,omitempty"`
	EjectEndpoints             bool             `json:"ejectEndpoints,omitempty"`
	PingVIPs                   bool             `json:"pingVIPs,omitempty"`
	SourceRangesForNodePorts   bool             `json:"sourceRangesForNodePorts,omitempty"`
	Takeover                   string           `json:"takeover,omitempty"`
	TakeoverDrain              metav1.Duration  `json:"takeoverDrainTimeout"`
	KeepKubeProxyTable         bool             `json:"keepKubeProxyTable,omitempty"`
	HostProc                   string           `json:"hostProc,omitempty"`
	TableOwnership             string           `json:"tableOwnership,omitempty"`
	LogLevel                   string           `json:"logLevel,omitempty"`
	LogFormat                  string           `json:"logFormat,omitempty"`
	// HealthzDisabled and MetricsDisabled stand for an empty address, which KubeProxyConfiguration
	// reads as the default.
	HealthzDisabled bool `json:"healthzDisabled,omitempty"`
	MetricsDisabled bool `json:"metricsDisabled,omitempty"`
}

// APIVersion is that of kube-nft's own documents.
const APIVersion = "kube-nft.github.io/v1alpha1"

// The identities of the two kinds of files.
const (
	proxyVersion = "kubeproxy.config.k8s.io/v1alpha1"
	proxyKind    = "KubeProxyConfiguration"
	ownKind      = "KubeNFTConfiguration"
)

// A document is the content of a file.
type document struct {
	proxy proxyv1alpha1.KubeProxyConfiguration
	own   KubeNFTConfiguration
	// useless lists fields whose value has no effect here, as "path value".
	useless []string
	// ignored has a line about each field that does not exist, or is there twice.
	ignored []string
}

// parse reads the documents of a file; errors name it.
func parse(file string, content []byte) (*document, error) {
	var d document
	seen := make(map[string]bool)
	rest := bytes.NewReader(content)
	buffer := bufio.NewReader(rest)
	reader := utilyaml.NewYAMLReader(buffer)
	for {
		part, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, &Error{Setting: file, Reason: words.OneLine(err)}
		}
		end := len(content) - rest.Len() - buffer.Buffered()
		kind, err := d.add(file, part, linesBefore(content[:end], part))
		if err != nil {
			return nil, err
		}
		if kind != "" && seen[kind] {
			return nil, &Error{Setting: file, Reason: "it has two documents of kind " + kind + "; merge them"}
		}
		seen[kind] = true
	}
	if !seen[proxyKind] && !seen[ownKind] {
		return nil, &Error{Setting: file, Reason: "it has no content; expected a document of kind " + proxyKind}
	}
	return &d, nil
}

// linesBefore counts the lines before a part that was read last of content. A separator may follow it.
func linesBefore(content, part []byte) int {
	lines := bytes.Split(bytes.TrimSuffix(content, []byte("\n")), []byte("\n"))
	n := len(lines) - len(bytes.Split(bytes.TrimSuffix(part, []byte("\n")), []byte("\n")))
	if bytes.HasPrefix(lines[len(lines)-1], []byte("---")) {
		n--
	}
	return max(n, 0)
}

// twice matches what the YAML library says of a key that is there twice.
var twice = regexp.MustCompile(`line (\d+): key (".*") already set in map`)

// add reads one document, which begins after so many lines of the file, and returns its kind, or
// nothing if it is empty. Of a field that is given twice the last value counts, as in kube-proxy.
func (d *document) add(file string, part []byte, before int) (kind string, err error) {
	converted, err := yaml.YAMLToJSONStrict(part)
	if err != nil {
		strict := strings.TrimPrefix(words.OneLine(err), "error converting YAML to JSON: ")
		matches := twice.FindAllStringSubmatch(err.Error(), -1)
		for _, match := range matches {
			line, _ := strconv.Atoi(match[1]) // digits
			d.ignored = append(d.ignored, fmt.Sprintf("%s: line %d: field %s is given twice; kube-nft uses the last value", file,
				before+line, brief(match[2])))
		}
		if converted, err = yaml.YAMLToJSON(part); err != nil || len(matches) == 0 {
			return "", &Error{Setting: file, Reason: strict}
		}
	}
	if string(converted) == "null" {
		return "", nil
	}
	var tree any
	if err := utiljson.UnmarshalCaseSensitivePreserveInts(converted, &tree); err != nil {
		return "", &Error{Setting: file, Reason: words.OneLine(err)}
	}
	top, _ := tree.(map[string]any)
	version, _ := top["apiVersion"].(string)
	kind, _ = top["kind"].(string)
	s := section{file: file, tree: top}
	switch {
	case version == proxyVersion && kind == proxyKind:
		s.into = &d.proxy
		d.useless = uselessFields(top)
	case version == APIVersion && kind == ownKind:
		s.into = &d.own
	default:
		return "",
			&Error{Setting: file, Reason: fmt.Sprintf("it has kind %q of apiVersion %q; expected %s of %s or %s of %s", kind,
				version, proxyKind, proxyVersion, ownKind, APIVersion)}
	}
	ignored, err := s.decode(converted)
	d.ignored = append(d.ignored, ignored...)
	return kind, err
}

// at returns the field of either kind that has this path in a file.
func (d *document) at(path string) reflect.Value {
	for _, v := range []reflect.Value{reflect.ValueOf(&d.proxy).Elem(), reflect.ValueOf(&d.own).Elem()} {
		if field, ok := fieldAt(v, path); ok {
			return field
		}
	}
	panic("no field " + path)
}
