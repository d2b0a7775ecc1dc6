package main

import (
	"bufio"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// list returns what our tables hold, as nft lists them, without what depends on the order in
// which it came: one line for each chain with its rules, for each set or map, and for each
// element. An element of a list of endpoints comes without its index. nft 1.0.6 was seen to leave out elements of one
// map on a busy machine, all of which kube-nft diff had just read. So it lists until two listings are equal.
func list() (lines []string, err error) {
	for {
		before := lines
		if lines, err = listOnce(); err != nil || slices.Equal(lines, before) {
			return lines, err
		}
	}
}

func listOnce() (lines []string, err error) {
	for _, name := range []string{"ip", "ip6"} {
		text, err := run("nft", "--stateless", "list", "table", name, "kube-nft")
		if err != nil {
			return nil, err
		}
		of, err := parseListing(text)
		if err != nil {
			return nil, err
		}
		for _, line := range of {
			lines = append(lines, name+" "+line)
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// parseListing takes the listing of one table apart.
func parseListing(text string) (lines []string, err error) {
	var block string // such as "chain services"; empty between blocks
	var content []string
	in := bufio.NewScanner(strings.NewReader(text))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		line := strings.TrimSpace(in.Text())
		switch {
		case block == "" && strings.HasSuffix(line, "{") && !strings.HasPrefix(line, "table "):
			block, content = strings.TrimSuffix(line, " {"), nil
		case block != "" && line == "}":
			lines = append(lines, flatten(block, content)...)
			block = ""
		case block != "":
			content = append(content, line)
		}
	}
	if block != "" {
		return nil, fmt.Errorf("nft lists %s without an end", block)
	}
	return lines, in.Err()
}

// index matches the index of an endpoint in its list: the last part of the key.
var index = regexp.MustCompile(` \. \S+(| comment "[^"]*") : `)

// flatten makes lines of a block.
func flatten(block string, content []string) []string {
	head, elements, found := strings.Cut(strings.Join(content, " "), "elements = {")
	lines := []string{block + ": " + strings.TrimSpace(head)}
	if !found || strings.Contains(head, "timeout") { // what packets have put there is none of ours
		return lines
	}
	for element := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(elements), "}"), ",") {
		if element = strings.TrimSpace(element); strings.Contains(block, "endpoints-") ||
			strings.HasPrefix(block, "map lists-") {
			element = index.ReplaceAllString(element, "$1 : ")
		}
		lines = append(lines, block+" holds "+element)
	}
	return lines
}

// compare says in which lines two sorted listings differ; empty if in none.
func compare(have, want []string) string {
	var text strings.Builder
	for len(have) > 0 || len(want) > 0 {
		switch {
		case len(want) == 0 || len(have) > 0 && have[0] < want[0]:
			fmt.Fprintf(&text, "too much: %s\n", have[0])
			have = have[1:]
		case len(have) == 0 || want[0] < have[0]:
			fmt.Fprintf(&text, "missing: %s\n", want[0])
			want = want[1:]
		default:
			have, want = have[1:], want[1:]
		}
	}
	return text.String()
}
