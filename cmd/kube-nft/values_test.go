package main

import (
	"testing"

	"github.com/kube-nft/kube-nft/integration/schema"
)

// TestValuesThatFlagsDoNotTake: no word of Go's in what is said about them.
func TestValuesThatFlagsDoNotTake(t *testing.T) {
	checkUsage(t, []usage{
		{[]string{"--kube-api-burst", "abc"}, "--kube-api-burst abc: expected a whole number, -2147483648 to 2147483647"},
		{[]string{"--masquerade-bit=99999999999"},
			"--masquerade-bit 99999999999: expected a whole number, -2147483648 to 2147483647"},
		{[]string{"--affinity-size", "-1"}, "--affinity-size -1: expected a whole number, 0 to 4294967295"},
		{[]string{"-v", "x"}, "--v x: expected a whole number, 0 to 4294967295"},
		{[]string{"--kube-api-qps", "many"}, "--kube-api-qps many: expected a number"},
		{[]string{"--masquerade-all=maybe"}, "--masquerade-all maybe: expected true or false"},
		{[]string{"cleanup", "--timeout", "5"}, "--timeout 5: expected a duration such as 30s, 5m or 1h"},
		{[]string{"--config"}, "flag needs an argument: --config"},
	})
}

// TestSchema holds the published schema of version to its document.
func TestSchema(t *testing.T) { schema.Check(t, *update, "Version", buildVersion{}) }
