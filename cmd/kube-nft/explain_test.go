package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// questions are asked on a node with the address 192.168.0.2, one for each kind of answer.
var questions = []string{
	"10.244.0.8 10.96.0.10:80/tcp",
	"10.244.0.9 10.96.0.10:80/tcp", // with an affinity entry
	"10.244.0.7 10.96.0.10:80/tcp", // with the entry of an endpoint that has left
	"10.244.0.6 10.96.0.2:53/udp",  // an endpoint itself
	"node 10.96.0.2:53/udp",
	"192.0.2.9 10.96.0.2:53/udp --interface eth0",
	"203.0.113.9 198.51.100.7:80/tcp",
	"192.0.2.9 -> 198.51.100.7:80/tcp", // not in the source ranges
	"node 198.51.100.7:80/tcp --from node",
	"10.244.0.8 192.168.0.2:30080/tcp --from pod",
	"192.0.2.9 192.168.0.2:30080/tcp",
	"192.0.2.9 192.168.0.3:30080/tcp", // served elsewhere
	"10.244.0.8 10.96.0.2:54/udp",
	"10.244.0.8 10.96.0.2/icmp",
	"10.244.0.8 10.96.77.2:80/sctp",
	"10.244.0.8 10.96.0.3:80/tcp",
	"fd44::9 [fd96::10]:80/tcp",
	"10.244.0.8 192.0.2.1:443/tcp",
}

// TestExplain explains the kernel's rules, and what the source asks for in the same words.
func TestExplain(t *testing.T) {
	program(t)
	lab.Run(t, "", "ip", "address", "add", "192.168.0.2/24", "dev", "lo")
	lab.Run(t, "", "nft", "add", "element", "ip", "kube-nft", "affinity-52",
		"{ 270661608 . 10.244.0.7 timeout 1d : 10.244.9.9 }")
	var fromKernel, fromSource strings.Builder
	for _, q := range questions {
		explainTo(t, &fromKernel, q, nil)
		explainTo(t, &fromSource, q, inspectionSource)
	}
	age := regexp.MustCompile(`expires\s+[0-9dhms]+`)
	kernel := age.ReplaceAllString(fromKernel.String(), "expires soon")
	checkGolden(t, "explain", kernel)
	checkGolden(t, "explain-source", fromSource.String())
	checkWidth(t, fromKernel.String())
}

func explainTo(t *testing.T, b *strings.Builder, question string, source []string) {
	t.Helper()
	words := strings.Fields(question)
	if strings.Contains(question, "->") { // in quotes
		words = []string{question}
	}
	args := append(append([]string{"explain"}, words...), source...)
	code, stdout, stderr := kubeNFT(t, args...)
	if code != exitOK || stderr != "" {
		t.Errorf("%s: exit %d: %s", question, code, stderr)
	}
	b.WriteString("$ kube-nft explain " + question + "\n" + stdout + "\n")
}

func TestExplainAsJSON(t *testing.T) {
	program(t)
	code, stdout, stderr := kubeNFT(t, "explain", "10.244.0.8", "10.96.0.2:53/udp", "-o", "json")
	var a map[string]any
	if err := json.Unmarshal([]byte(stdout), &a); code != exitOK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, stderr)
	}
	checkGolden(t, "explain-json", stdout)
}

// TestExplainForeignChanges: explain names a rule that another program added. If another program removed an element,
// the verdict differs from the source's.
func TestExplainForeignChanges(t *testing.T) {
	program(t)
	lab.Run(t, "", "nft", "insert", "rule", "ip", "kube-nft", "services", "counter", "accept")
	lab.Run(t, "", "nft", "delete", "element", "ip", "kube-nft", "services", "{ 10.96.0.2 . udp . 53 }")
	args := []string{"explain", "10.244.0.8", "10.96.0.2:53/udp", "--from-kernel"}
	code, stdout, stderr := kubeNFT(t, append(args, inspectionSource...)...)
	if code != exitFound || stderr != "" {
		t.Errorf("exit %d: %s", code, stderr)
	}
	checkGolden(t, "explain-foreign", stdout)
	checkWidth(t, stdout)
}

// TestExplainOwnConnection: another program's chain at output refuses what this node sends.
func TestExplainOwnConnection(t *testing.T) {
	program(t)
	const drop = "table inet mine {\nchain out {\ntype filter hook output priority 0; policy drop;\n}\n}\n"
	lab.Run(t, drop, "nft", "-f", "-")
	code, stdout, stderr := kubeNFT(t, "explain", "192.168.0.2", "10.96.0.2:53/udp", "--from", "node")
	if code != exitOK || stderr != "" || !strings.Contains(stdout, "table inet mine, chain out: its policy refuses it") {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
}

// TestExplainArrow: an arrow may be quoted alone, and changes nothing.
func TestExplainArrow(t *testing.T) {
	lab.New(t)
	command := append([]string{"explain", "10.244.0.9", "10.96.0.2:53/udp"}, inspectionSource...)
	_, want, _ := kubeNFT(t, command...)
	code, got, stderr := kubeNFT(t, slices.Insert(command, 2, "->")...)
	if code != exitOK || got != want || stderr != "" {
		t.Errorf("exit %d, %s%s", code, got, stderr)
	}
}

func TestExplainWithoutTable(t *testing.T) {
	lab.New(t)
	code, stdout, stderr := kubeNFT(t, "explain", "10.244.0.8", "10.96.0.2:53/udp")
	if code != exitTrouble || stdout != "" ||
		!strings.HasPrefix(stderr, "kube-nft: this network namespace has no table kube-nft: ") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

func TestExplainUsage(t *testing.T) {
	const shape = "explain: expected SRC and DEST, such as 10.244.0.9 10.96.0.10:80/tcp or 10.244.0.9 shop/web:http"
	usages := []usage{
		{nil, shape},
		{[]string{"10.0.0.1"}, shape},
		{[]string{"10.0.0.1", "10.0.0.2:80/tcp", "10.0.0.3:80/tcp"}, shape},
		{[]string{"Pod", "10.0.0.2:80/tcp"}, `source "Pod": expected an IP address, the name of a Node, or node`},
		{[]string{"10.0.0.256", "10.0.0.2:80/tcp"},
			`source "10.0.0.256": expected an IP address, the name of a Node, or node`},
		{[]string{"fe80::1%eth0", "[fd96::10]:80/tcp"},
			`source "fe80::1%eth0": expected an IP address, the name of a Node, or node`},
		{[]string{"10.0.0.1", "shop/web/http"}, `protocol "web/http": expected tcp, udp, sctp or icmp`},
		{[]string{"10.0.0.1", "10.0.0.2:80"},
			`destination "10.0.0.2:80": expected a protocol at its end: tcp, udp, sctp or icmp, such as 10.96.0.10:80/tcp`},
		{[]string{"10.0.0.1", "10.0.0.2:80/http"}, `protocol "http": expected tcp, udp, sctp or icmp`},
		{[]string{"10.0.0.1", "10.0.0.2/tcp"},
			`destination "10.0.0.2/tcp": expected ADDR:PORT/PROTO, such as 10.96.0.10:80/tcp or [fd96::10]:80/tcp`},
		{[]string{"fd44::1", "fd96::10:80/tcp"},
			`destination "fd96::10:80/tcp": expected ADDR:PORT/PROTO, such as 10.96.0.10:80/tcp or [fd96::10]:80/tcp`},
		{[]string{"10.0.0.1", "10.0.0.256:80/tcp"}, `destination "10.0.0.256:80/tcp": "10.0.0.256" is not an IP address`},
		{[]string{"10.0.0.1", "10.0.0.2:0/tcp"}, `destination "10.0.0.2:0/tcp": "0" is not a port, 1 to 65535`},
		{[]string{"10.0.0.1", "10.0.0.2:65536/tcp"}, `destination "10.0.0.2:65536/tcp": "65536" is not a port, 1 to 65535`},
		{[]string{"10.0.0.1", "10.0.0.2:8/icmp"},
			`destination "10.0.0.2:8/icmp": "10.0.0.2:8" is not an IP address; icmp has no port`},
		{[]string{"fd44::1", "10.0.0.2:80/tcp"}, "explain: fd44::1 and 10.0.0.2 are of different IP families"},
		{[]string{"10.0.0.1", "10.0.0.2:80/tcp", "--from", "mars"}, "--from mars: expected pod, node or outside"},
		{[]string{"node", "10.0.0.2:80/tcp", "--from", "pod"},
			"--from pod: expected the address of the source instead of node"},
		{[]string{"node", "10.0.0.2:80/tcp", "--interface", "eth0"},
			"--interface eth0: packets that this node sends arrive on no interface"},
		{[]string{"10.0.0.1", "10.0.0.2:80/tcp", "--interface", "a-name-that-is-too-long"},
			"--interface a-name-that-is-too-long: the name of an interface has at most 15 bytes"},
		{[]string{"10.0.0.1", "10.0.0.2:80/tcp", "-o", "table"}, "--output table: expected text, json or yaml"},
	}
	for i := range usages {
		usages[i].args = append([]string{"explain"}, usages[i].args...)
	}
	checkUsage(t, usages)
}

// TestExplainNames: names stand for the addresses that tables and source have.
func TestExplainNames(t *testing.T) {
	program(t)
	lab.Run(t, "", "ip", "address", "add", "192.168.0.2/24", "dev", "lo")
	for _, tt := range []struct {
		args, like string
		source     bool
	}{
		{args: "10.244.0.8 kube-system/dns:dns", like: "10.244.0.8 10.96.0.2:53/udp"},
		{args: "10.244.0.8 kube-system/dns", like: "10.244.0.8 10.96.0.2:53/udp"},
		{args: "10.244.0.8 kube-system/dns:53/UDP", like: "10.244.0.8 10.96.0.2:53/udp"},
		{args: "fd44::9 shop/web6:http/tcp", like: "fd44::9 [fd96::10]:80/tcp"},
		{args: "node shop/web", like: "node 10.96.0.10:80/tcp"},
		{args: "10.244.0.8 kube-system/dns", like: "10.244.0.8 10.96.0.2:53/udp", source: true},
		{args: "192.0.2.9 node-1:30080/tcp", like: "192.0.2.9 192.168.0.2:30080/tcp", source: true},
		{args: "node-1 shop/web:80", like: "192.168.0.2 10.96.0.10:80/tcp", source: true},
	} {
		var outputs []string
		for _, args := range []string{tt.args, tt.like} {
			line := append([]string{"explain"}, strings.Fields(args)...)
			if tt.source {
				line = append(line, inspectionSource...)
			}
			code, stdout, stderr := kubeNFT(t, line...)
			if code != exitOK || stderr != "" {
				t.Errorf("%s: exit %d: %s", args, code, stderr)
			}
			outputs = append(outputs, stdout)
		}
		if outputs[0] != outputs[1] {
			t.Errorf("%s prints\n%s\n%s prints\n%s", tt.args, outputs[0], tt.like, outputs[1])
		}
	}
	for args, want := range map[string]string{
		"10.244.0.8 shop/nobody": "kube-nft: no Service shop/nobody is programmed here for the family of the " +
			"source; kube-nft get services lists them\n",
		"fd44::9 kube-system/dns": "kube-nft: no Service kube-system/dns is programmed here for the family of the " +
			"source; kube-nft get services lists them\n",
		"10.244.0.8 kube-system/dns:99": "kube-nft: no Service kube-system/dns:99 is programmed here for the family of the " +
			"source; kube-nft get services lists them\n",
		"elsewhere 10.96.0.2:53/udp": "kube-nft: there is no Node elsewhere\n",
	} {
		code, stdout, stderr := kubeNFT(t, append(append([]string{"explain"}, strings.Fields(args)...),
			inspectionSource...)...)
		if code != exitTrouble || stdout != "" || stderr != want {
			t.Errorf("%s: exit %d, %q, %q; want %q", args, code, stdout, stderr, want)
		}
	}
}

// TestExplainPort: a Service whose endpoints are ready, but do not have the port, is told from one without endpoints.
func TestExplainPort(t *testing.T) {
	program(t)
	cluster, err := os.ReadFile("testdata/inspection/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const slice = `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: empty-1, namespace: shop, labels: {kubernetes.io/service-name: empty}}
addressType: IPv4
ports: %s
endpoints:
- {addresses: [10.244.0.5], conditions: {ready: %t}}
- {addresses: [10.244.1.5], conditions: {ready: %t}}
`
	const begin = "10.244.0.8 -> 10.96.0.3:80/tcp is rejected with a TCP reset: Service shop/empty has no endpoint"
	for _, tt := range []struct {
		target, ports string
		ready         bool
		want          string
	}{
		{"http", "[]", true, `; it has 2 ready endpoints, none with this port: no ready pod has a container port named ` +
			`"http", the targetPort.`},
		{"8080", "[]", true, "; it has 2 ready endpoints, none with this port."},
		{"http", "[]", false, "."},
		{"http", `[{name: "", port: 8080}]`, false, "."},
	} {
		file := filepath.Join(t.TempDir(), "cluster.yaml")
		text := strings.Replace(string(cluster), "{port: 80}", "{port: 80, targetPort: "+tt.target+"}", 1) +
			fmt.Sprintf(slice, tt.ports, tt.ready, tt.ready)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, from := range []string{"--from-source", "--from-kernel"} {
			code, stdout, stderr := kubeNFT(t, "explain", "10.244.0.8", "shop/empty", from, "--manifests", file,
				"--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16", "--log-level", "error")
			first, _, _ := strings.Cut(stdout, "\n\n")
			if got := strings.Join(strings.Fields(first), " "); code != exitOK || got != begin+tt.want {
				t.Errorf("%+v, %s: exit %d, %s%s", tt, from, code, got, stderr)
			}
		}
	}
}

// TestExplainContradictions: who is taken for a pod is for the rules to say.
func TestExplainContradictions(t *testing.T) {
	lab.New(t) // explain asks the daemon of this network namespace for its pod CIDRs
	source := append([]string{"explain"}, inspectionSource...)
	checkUsage(t, []usage{
		{append(source[:len(source):len(source)], "192.0.2.1", "10.96.0.2:53/udp", "--from", "pod"),
			"--from pod: the rules do not treat 192.0.2.1 as a pod, because it is not in 10.244.0.0/16"},
		{append(source[:len(source):len(source)], "10.244.0.8", "10.96.0.2:53/udp", "--from", "outside"),
			"--from outside: the rules treat 10.244.0.8 as a pod, because it is in 10.244.0.0/16"},
	})
}
