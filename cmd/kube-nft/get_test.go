package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// ageOfTest matches what is left of a day when an entry is as old as the test.
var ageOfTest = regexp.MustCompile(`23h5\dm\d+s`)

func TestGet(t *testing.T) {
	program(t)
	for _, tt := range []struct{ name, args string }{
		{"services", "get services"},
		{"services-of-one-name", "get services -n shop web -o yaml"},
		{"services-of-one-name", "get services shop/web -o yaml"},
		{"services-of-one-name", "get services shop/web:http -o yaml"},
		{"services-of-family-6", "get services --family 6 -o json"},
		{"services-of-family-6", "get services --family ipV6 -o json"},
		{"endpoints", "get endpoints"},
		{"endpoints-of-one-namespace", "get endpoints --namespace kube-system -o json"},
		{"affinity", "get affinity"},
	} {
		code, stdout, stderr := kubeNFT(t, strings.Fields(tt.args)...)
		if code != exitOK || stderr != "" {
			t.Errorf("%s: exit %d: %s", tt.args, code, stderr)
		}
		stdout = ageOfTest.ReplaceAllString(stdout, "24h0m0s")
		checkGolden(t, tt.name, stdout)
		checkWidth(t, stdout)
	}
}

// TestGetSelected: labels come from the source of objects, in tables and documents alike.
func TestGetSelected(t *testing.T) {
	program(t)
	for args, want := range map[string]string{
		"get services -l app=web -o name":                    "shop/web",
		"get services -l app!=web -o name":                   "kube-system/dns shop/empty shop/web6",
		"get services -l app!=web --sort-by ep -o name":      "shop/empty shop/web6 kube-system/dns",
		"get services -l app -n kube-system -o name":         "",
		"get affinity -l app=web -o name":                    "shop/web",
		"get services --sort-by frontend -o name":            "shop/web kube-system/dns shop/empty shop/web6",
		"get endpoints dns --sort-by ENDPOINT -o name":       "kube-system/dns",
		"get services empty -l app=web -o name --sort-by EP": "",
	} {
		_, stdout, _ := kubeNFT(t, append(strings.Fields(args), inspectionSource...)...)
		if got := strings.Join(strings.Fields(stdout), " "); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	code, _, stderr := kubeNFT(t, "get", "services", "-l", "a=b", "--manifests", "/nowhere")
	if code != exitTrouble || !strings.HasPrefix(stderr, "kube-nft: --selector: ") {
		t.Errorf("without a source: exit %d, %s", code, stderr)
	}
}

func TestGetNothing(t *testing.T) {
	program(t)
	for _, tt := range []struct {
		args, want string
		code       int
	}{
		{"get affinity dns", "no affinity entries found\n", exitOK}, // the Service has none
		{"get services -n nowhere", "no services found\n", exitOK},
		{"get services --family 6 web", "kube-nft: no Service web is programmed here for IPv6\n", exitFound},
		{"get endpoints -n shop nobody", "kube-nft: no Service shop/nobody is programmed here\n", exitFound},
		{"get services shop/web:admin", "kube-nft: no Service shop/web:admin is programmed here\n", exitFound},
		{"get affinity shop/nobody", "kube-nft: no Service shop/nobody is programmed here\n", exitFound},
	} {
		if code, stdout, stderr := kubeNFT(t, strings.Fields(tt.args)...); code != tt.code || stdout != "" ||
			stderr != tt.want {
			t.Errorf("%s: exit %d, %q, %q", tt.args, code, stdout, stderr)
		}
		if code, stdout, _ := kubeNFT(t, append(strings.Fields(tt.args), "-o", "json")...); code != tt.code ||
			!strings.HasSuffix(stdout, "\n  \"items\": []\n}\n") {
			t.Errorf("%s as json: exit %d, %q", tt.args, code, stdout)
		}
	}
}

func TestGetWithoutTable(t *testing.T) {
	lab.New(t)
	code, stdout, stderr := kubeNFT(t, "get", "services")
	const want = "kube-nft: this network namespace has no table kube-nft: no kube-nft has programmed it; " +
		"run this where the daemon runs, in the node's network namespace\n"
	if code != exitTrouble || stdout != "" || stderr != want {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

// TestGetConnections: where the kernel counts, there is a column for it.
func TestGetConnections(t *testing.T) {
	lab.New(t)
	_, ruleset, _ := kubeNFT(t, append(inspectionSource, "--dry-run")...)
	counting := regexp.MustCompile(`(map [a-z-]*endpoints-[a-z]* \{\n\t\ttypeof .*)\n`)
	lab.Run(t, counting.ReplaceAllString(ruleset, "$1\n\t\tcounter\n"), "nft", "-f", "-")
	_, stdout, stderr := kubeNFT(t, "get", "endpoints", "dns")
	const want = `SERVICE              FRONTEND         LIST     INDEX  ENDPOINT       CONNECTIONS
kube-system/dns:dns  10.96.0.2:53/udp  cluster  0      10.244.0.6:53  0
kube-system/dns:dns  10.96.0.2:53/udp  cluster  1      10.244.1.6:53  0
kube-system/dns:dns  10.96.0.2:53/udp  cluster  2      10.244.2.6:53  0
kube-system/dns:dns  10.96.0.2:53/udp  cluster  3      10.244.3.6:53  0
`
	if diff := cmp.Diff(strings.Fields(want), strings.Fields(stdout)); diff != "" || stderr != "" {
		t.Errorf("%s(-want +got):\n%s", stderr, diff)
	}
}

func TestGetUsage(t *testing.T) {
	checkUsage(t, []usage{
		{[]string{"get"}, "get: expected services, endpoints or affinity"},
		{[]string{"get", "pods"}, `get "pods": expected services, endpoints or affinity`},
		{[]string{"get", "services", "a", "b"}, "get services: expected one name of a Service at most, got 2"},
		{[]string{"get", "services", "shop/"}, `Service "shop/": expected NAME or NAMESPACE/NAME[:PORT]`},
		{[]string{"get", "services", "shop/web", "-n", "dev"}, "Service shop/web: --namespace dev says otherwise"},
		{[]string{"get", "services", "-o", "xml"}, "--output xml: expected table, wide, name, json or yaml"},
		{[]string{"get", "affinity", "--family", "5"}, "--family 5: expected 4, 6, IPv4 or IPv6"},
		{[]string{"get", "affinity", "--sort-by", "ep"},
			"--sort-by ep: expected service, client, list, endpoint, remaining or family"},
		{[]string{"get", "services", "-w", "-l", "a=b"}, "--watch: get reads labels once, so --selector cannot be watched"},
		{[]string{"get", "services", "-l", "a=b=c"},
			`--selector "a=b=c": found '=', expected: ',' or 'end of string'`},
	})
}

// TestCompletion: the shell is offered what the kernel knows, and nothing without it.
func TestCompletion(t *testing.T) {
	program(t)
	for args, want := range map[string]string{
		"__complete get -n ":                 "kube-system shop :4",
		"__complete get services ":           "dns empty web web6 :4",
		"__complete get services -n shop ":   "empty web web6 :4",
		"__complete get services web ":       ":4",
		"__complete get services --family ":  "4 6 :4",
		"__complete get affinity --sort-by ": "service client list endpoint remaining family :4",
		"__complete get services -o ":        "table wide name json yaml :4",
		"__complete trace ":                  "kube-system/dns shop/empty shop/web shop/web6 :4",
		"__complete trace shop/web ":         ":4",
		"__complete explain node ":           "kube-system/dns shop/empty shop/web shop/web6 :4",
	} {
		_, stdout, _ := kubeNFT(t, strings.Split(args, " ")...)
		if got := strings.Join(strings.Fields(stdout), " "); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, _ := kubeNFT(t, "completion", shell); code != exitOK || !strings.Contains(stdout, "kube-nft") {
			t.Errorf("completion %s: exit %d", shell, code)
		}
	}
}

func TestCompletionWithoutTable(t *testing.T) {
	lab.New(t)
	if _, stdout, _ := kubeNFT(t, "__complete", "get", "services", ""); strings.TrimSpace(stdout) != ":4" {
		t.Errorf("%q", stdout)
	}
}

// A changer changes the kernel when it gets a list, and ends the command when it gets the change.
type changer struct {
	text        strings.Builder
	change, end func()
}

func (c *changer) Write(text []byte) (int, error) {
	n, err := c.text.Write(text)
	if c.change != nil {
		c.change()
		c.change = nil
	} else if strings.HasPrefix(string(text), "+") {
		c.end()
	}
	return n, err
}

// TestGetWatch: after the list come the rows that went and those that came, and nothing else.
func TestGetWatch(t *testing.T) {
	program(t)
	_, list, _ := kubeNFT(t, "get", "services", "-o", "name")
	if want := "kube-system/dns\nshop/empty\nshop/web\nshop/web6\n"; list != want {
		t.Errorf("names %q, want %q", list, want)
	}
	_, wide, _ := kubeNFT(t, "get", "services", "-A", "-o", "wide", "shop/web6")
	if got := strings.Join(strings.Fields(wide), " "); !strings.Contains(got,
		"POLICY AFFINITY FAMILY VERDICT shop/web6:http") || !strings.HasSuffix(got, "- IPv6 goto drop-not-local") {
		t.Errorf("wide:\n%s", wide)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := &changer{end: cancel, change: func() {
		lab.Run(t, "delete element ip kube-nft services { 10.96.0.3 . tcp . 80 }\n"+
			"add element ip kube-nft services { 10.96.0.4 . tcp . 80 comment \"shop/other\" : goto reject-new }\n",
			"nft", "-f", "-")
	}}
	var stderr bytes.Buffer
	code := execute(ctx, newRoot(), []string{"get", "services", "-A", "-w"}, out, &stderr)
	if code != exitOK || stderr.Len() > 0 {
		t.Errorf("exit %d, %s", code, &stderr)
	}
	_, changes, _ := strings.Cut(out.text.String(), "\n- ")
	lines := strings.Split(strings.TrimSpace("- "+changes), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "- shop/empty ") || !strings.HasPrefix(lines[1], "+ shop/other ") ||
		!strings.Contains(lines[1], " 10.96.0.4:80/tcp ") {
		t.Errorf("changes %q in\n%s", lines, out.text.String())
	}
	checkUsage(t, []usage{
		{[]string{"get", "services", "-w", "-o", "json"}, "--watch: expected --output table, wide or name"},
		{[]string{"get", "services", "-A", "-n", "shop"}, "--all-namespaces: --namespace shop says otherwise"},
	})
}

// TestKindsOfExternalAddresses: get and explain tell addresses of load balancers, their ipMode, external IPs and
// those that are not allowed apart, from the tables.
func TestKindsOfExternalAddresses(t *testing.T) {
	lab.New(t)
	objects := filepath.Join(t.TempDir(), "service.yaml")
	err := os.WriteFile(objects, []byte(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  externalIPs: [203.0.113.5, 203.0.113.6]
  ports: [{name: http, port: 80}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.7}, {ip: 198.51.100.8, ipMode: Router}]}}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, ruleset, stderr := kubeNFT(t, "--dry-run", "--manifests", objects, "--hostname-override", "node-1",
		"--external-ips", "203.0.113.6/32")
	if !strings.Contains(stderr, "spec.externalIPs[0]: 203.0.113.5 is not served") {
		t.Errorf("a dry run says %s", stderr)
	}
	lab.Run(t, ruleset, "nft", "-f", "-")
	const want = `SERVICE        FRONTEND            KIND         EP  LOCAL  POLICY
shop/web:http  10.96.0.10:80/tcp   cluster IP   0   -      reject (no endpoint)
shop/web:http  198.51.100.7:80/tcp LB IP        0   -      reject (no endpoint)
shop/web:http  198.51.100.8:80/tcp LB IP        0   -      pass (no endpoint), ipMode Router
shop/web:http  203.0.113.6:80/tcp  external IP  0   -      reject (no endpoint)
`
	if _, got, stderr := kubeNFT(t, "get", "services"); stderr != "" ||
		cmp.Diff(strings.Fields(want), strings.Fields(got)) != "" {
		t.Errorf("get: %s%s", got, stderr)
	}
	for address, reason := range map[string]string{
		"203.0.113.5:80/tcp":  "it is addressed to no Service",
		"198.51.100.8:80/tcp": "Service shop/web:http has no endpoint, and the address has the ipMode Router",
	} {
		_, got, _ := kubeNFT(t, "explain", "192.0.2.1", address)
		if !strings.Contains(strings.Join(strings.Fields(got), " "), reason) {
			t.Errorf("explain: %s", got)
		}
	}
}
