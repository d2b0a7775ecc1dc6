package main

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

func TestStatusOfKernel(t *testing.T) {
	program(t)
	lab.Run(t, "", "nft", "add", "rule", "ip6", "kube-nft", "services", "counter")
	generation := regexp.MustCompile(`(?i)(generation"?:? +)\d+`)
	for _, tt := range []struct{ name, format string }{{"status", "table"}, {"status-json", "json"}} {
		code, stdout, stderr := kubeNFT(t, "status", "-o", tt.format)
		if code != exitFound || stderr != "" { // no daemon is reached
			t.Errorf("%s: exit %d: %s", tt.name, code, stderr)
		}
		checkGolden(t, tt.name, generation.ReplaceAllString(stdout, "${1}9"))
		checkWidth(t, stdout)
	}
}

func TestStatusWithoutTable(t *testing.T) {
	lab.New(t)
	code, stdout, stderr := kubeNFT(t, "status")
	const want = `Daemon              not reached: no kube-nft programs this network namespace

Kernel              not programmed: no table kube-nft in this network namespace
Generation          1
`
	if diff := cmp.Diff(want, stdout); code != exitFound || diff != "" || stderr != "" {
		t.Errorf("exit %d, %s (-want +got):\n%s", code, stderr, diff)
	}
}

func TestStatusUsage(t *testing.T) {
	checkUsage(t, []usage{
		{[]string{"stauts"}, `unknown command "stauts", did you mean status?`},
		{[]string{"status", "web"}, `unknown command "web"`},
		{[]string{"status", "-o", "text"}, "--output text: expected table, json or yaml"},
	})
}
