package packets

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A behaviourCase is one file of the cases directory, whose README describes the format.
type behaviourCase struct {
	Name    string           `json:"name"`
	Origin  string           `json:"origin"`
	Proxy   proxySettings    `json:"proxy"`
	NodeIPs []netip.Addr     `json:"nodeIPs"`
	Objects []map[string]any `json:"objects"`
	Flows   []flow           `json:"flows"`
	Steps   []caseStep       `json:"steps"`
}

// proxySettings are the flags that a case starts the proxy with.
type proxySettings struct {
	NodeName          string   `json:"nodeName"`
	ClusterCIDR       string   `json:"clusterCIDR"` // one range, or a comma list
	MasqueradeAll     bool     `json:"masqueradeAll"`
	NodePortAddresses []string `json:"nodePortAddresses"`
	ExternalIPs       []string `json:"externalIPs"`
}

// A caseStep changes objects and then sends packets.
type caseStep struct {
	Apply  []map[string]any `json:"apply"`
	Delete []objectID       `json:"delete"`
	Flows  []flow           `json:"flows"`
}

// A flow is a number of connections between the same addresses.
type flow struct {
	Name   string         `json:"name"`
	From   netip.Addr     `json:"from"`
	Via    string         `json:"via"` // pod, external or local
	Proto  string         `json:"proto"`
	To     netip.AddrPort `json:"to"`
	Expect expectation    `json:"expect"`
}

// An objectID names a Kubernetes object; Namespace is empty for those that have none.
type objectID struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// idOf returns the identity of an object as the API server stores it.
func idOf(object map[string]any) objectID {
	metadata, _ := object["metadata"].(map[string]any)
	kind, _ := object["kind"].(string)
	namespace, _ := metadata["namespace"].(string)
	name, _ := metadata["name"].(string)
	return objectID{Kind: kind, Namespace: namespace, Name: name}
}

// loadCases reads every case of a directory. Two files must not hold the same case.
func loadCases(dir string) ([]behaviourCase, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("no *.yaml in %s", dir)
	}
	var cases []behaviourCase
	seen := map[string]string{}
	for _, path := range paths {
		c, err := loadCase(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if first, ok := seen[c.Name]; ok {
			return nil, fmt.Errorf("%s: case %q is in %s too", path, c.Name, first)
		}
		seen[c.Name] = path
		cases = append(cases, c)
	}
	return cases, nil
}

// loadCase reads and checks one case.
func loadCase(path string) (behaviourCase, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return behaviourCase{}, err
	}
	return parseCase(text)
}

// parseCase reads and checks the text of a case, and fills in the defaults.
func parseCase(text []byte) (behaviourCase, error) {
	var c behaviourCase
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return c, err
	}
	if c.Proxy.NodeName == "" {
		c.Proxy.NodeName = lab.NodeName
	}
	return c, c.check()
}

// check reports what makes a case unusable.
func (c *behaviourCase) check() error {
	if c.Name == "" || len(c.NodeIPs) == 0 {
		return errors.New("name and nodeIPs must not be empty")
	}
	if _, err := c.Proxy.podRanges(); err != nil {
		return err
	}
	for _, f := range c.allFlows() {
		if err := f.check(); err != nil {
			return fmt.Errorf("flow %q: %w", f.Name, err)
		}
	}
	return c.checkObjects()
}

// checkObjects reports an object that lacks its identity.
func (c *behaviourCase) checkObjects() error {
	objects := c.Objects
	for _, step := range c.Steps {
		objects = append(objects, step.Apply...)
	}
	for _, object := range objects {
		if id := idOf(object); id.Kind == "" || id.Name == "" {
			text, _ := json.Marshal(object) // came from YAML, so can be written
			return fmt.Errorf("object without kind or name: %s", text)
		}
	}
	return nil
}

// check reports what makes a flow unusable.
func (f *flow) check() error {
	if f.Via != "pod" && f.Via != "external" && f.Via != "local" {
		return fmt.Errorf("via is %q, must be pod, external or local", f.Via)
	}
	if _, ok := protocols[f.Proto]; !ok {
		return fmt.Errorf("proto is %q, must be tcp, udp or sctp", f.Proto)
	}
	if !f.From.IsValid() || !f.To.IsValid() || f.From.Is4() != f.To.Addr().Is4() {
		return fmt.Errorf("from %s and to %s must be addresses of one family", f.From, f.To)
	}
	if f.Expect.kinds() != 1 {
		return errors.New("expect must hold exactly one of dnat, reject, drop and passthrough")
	}
	return nil
}

// kinds counts how many kinds of outcome an expectation names.
func (e expectation) kinds() int {
	n := 0
	for _, set := range []bool{len(e.DNAT) > 0, e.Reject, e.Drop, e.Passthrough} {
		if set {
			n++
		}
	}
	return n
}

// allFlows returns the flows of the case and of all its steps.
func (c *behaviourCase) allFlows() []flow {
	flows := c.Flows[:len(c.Flows):len(c.Flows)]
	for _, step := range c.Steps {
		flows = append(flows, step.Flows...)
	}
	return flows
}

// podRanges returns the ranges that lie behind the pod device. The cases have their pods
// in the two defaults, whether the proxy is told a cluster CIDR or not.
func (s *proxySettings) podRanges() ([]netip.Prefix, error) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	for text := range strings.SplitSeq(s.ClusterCIDR, ",") {
		if text == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("clusterCIDR: %w", err)
		}
		if prefix = prefix.Masked(); prefix != ranges[0] && prefix != ranges[1] {
			ranges = append(ranges, prefix)
		}
	}
	return ranges, nil
}

// flags returns the settings as kube-nft's flags.
func (s *proxySettings) flags() []string {
	flags := []string{"--hostname-override", s.NodeName, "--min-sync-period", "10ms"}
	if s.ClusterCIDR != "" {
		flags = append(flags, "--cluster-cidr", s.ClusterCIDR)
	}
	if s.MasqueradeAll {
		flags = append(flags, "--masquerade-all")
	}
	if len(s.ExternalIPs) > 0 {
		flags = append(flags, "--external-ips", strings.Join(s.ExternalIPs, ","))
	}
	if len(s.NodePortAddresses) > 0 {
		flags = append(flags, "--nodeport-addresses", strings.Join(s.NodePortAddresses, ","))
	}
	return flags
}

func TestParseCaseRefuses(t *testing.T) {
	const good = "name: c\nnodeIPs: [192.168.0.2]\nflows:\n- {name: f, from: 10.244.0.7, via: pod, proto: tcp, to: " +
		"'10.96.0.1:80', expect: {drop: true}}\n"
	if _, err := parseCase([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, from, to, want string }{
		{"unknown field", "name: c", "nome: c", `unknown field "nome"`},
		{"no addresses", "[192.168.0.2]", "[]", "name and nodeIPs must not be empty"},
		{"unknown way", "via: pod", "via: moon", `flow "f": via is "moon", must be pod, external or local`},
		{"unknown protocol", "tcp", "icmp", `flow "f": proto is "icmp", must be tcp, udp or sctp`},
		{"two families", "10.96.0.1:80", "[fd00::1]:80",
			`flow "f": from 10.244.0.7 and to [fd00::1]:80 must be addresses of one family`},
		{"two expectations", "{drop: true}", "{drop: true, reject: true}",
			`flow "f": expect must hold exactly one of dnat, reject, drop and passthrough`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseCase([]byte(strings.Replace(good, tt.from, tt.to, 1)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}
