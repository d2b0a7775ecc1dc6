package main

import (
	"slices"
	"strings"
	"testing"
)

const listed = `table ip kube-nft { # progname kube-nft
	flags owner
	comment "Kubernetes Services"

	map services {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.96.0.10 . tcp . 80 comment "soak/steady:tcp" : goto external-8,
			     10.96.0.11 . tcp . 80 comment "soak/rolling:tcp" : goto external-2 }
	}

	map node-port-endpoints-tcp {
		typeof meta l4proto . tcp dport . numgen random mod 65536 : ip daddr . tcp dport
		elements = { tcp . 32501 . 0 : 10.0.0.1 . 8080, tcp . 32501 . 1 : 10.0.0.2 . 8080 }
	}

	map lists-tcp-1 {
		typeof numgen random mod 65536 . numgen random mod 65536 : ip daddr . tcp dport
		elements = { 2016379018 . 1 comment "soak/affine:tcp" : 10.0.0.3 . 8080 }
	}

	map affinity-x-8080 {
		type ipv4_addr : ipv4_addr
		size 65536
		flags dynamic,timeout
		elements = { 192.0.2.1 timeout 3h : 10.0.0.1 }
	}

	set hairpin {
		type ipv4_addr . ipv4_addr
	}

	chain pick-1 {
		ip daddr 10.0.0.1 accept
		drop
	}
}
`

func TestParseListing(t *testing.T) {
	got, err := parseListing(listed)
	want := []string{
		`map services: type ipv4_addr . inet_proto . inet_service : verdict`,
		`map services holds 10.96.0.10 . tcp . 80 comment "soak/steady:tcp" : goto external-8`,
		`map services holds 10.96.0.11 . tcp . 80 comment "soak/rolling:tcp" : goto external-2`,
		`map node-port-endpoints-tcp: typeof meta l4proto . tcp dport . numgen random mod 65536 : ip daddr . tcp dport`,
		`map node-port-endpoints-tcp holds tcp . 32501 : 10.0.0.1 . 8080`,
		`map node-port-endpoints-tcp holds tcp . 32501 : 10.0.0.2 . 8080`,
		`map lists-tcp-1: typeof numgen random mod 65536 . numgen random mod 65536 : ip daddr . tcp dport`,
		`map lists-tcp-1 holds 2016379018 comment "soak/affine:tcp" : 10.0.0.3 . 8080`,
		`map affinity-x-8080: type ipv4_addr : ipv4_addr size 65536 flags dynamic,timeout`,
		`set hairpin: type ipv4_addr . ipv4_addr`,
		`chain pick-1: ip daddr 10.0.0.1 accept drop`,
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, got\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, err := parseListing(listed[:len(listed)-len("\t}\n}\n")]); err == nil ||
		err.Error() != "nft lists chain pick-1 without an end" {
		t.Errorf("a listing that is cut off: %v", err)
	}
}

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		have, want []string
		text       string
	}{
		{nil, nil, ""},
		{[]string{"a", "b"}, []string{"a", "b"}, ""},
		{[]string{"a", "c"}, []string{"b", "c", "d"}, "too much: a\nmissing: b\nmissing: d\n"},
		{[]string{"a", "a"}, []string{"a"}, "too much: a\n"},
	} {
		if got := compare(tt.have, tt.want); got != tt.text {
			t.Errorf("%v and %v: got %q, want %q", tt.have, tt.want, got, tt.text)
		}
	}
}
