package tracker

import "fmt"

const (
	maxLabel     = 63  // RFC 1123, section 2.1: one label of a host name
	maxSubdomain = 253 // RFC 1123, section 2.1: labels and dots together
)

// labelFault says what keeps s from being a DNS label in the sense of RFC 1123, the form of
// namespaces, Services and port names; empty if nothing does.
func labelFault(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxLabel:
		return fmt.Sprintf("%s has %d bytes, at most %d are allowed", quote(s), len(s), maxLabel)
	case !isLabel(s):
		return fmt.Sprintf("%s is no DNS label: use a-z, 0-9 and, inside, '-'", quote(s))
	}
	return ""
}

// subdomainFault is labelFault for names of other objects, in which dots may occur.
func subdomainFault(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxSubdomain:
		return fmt.Sprintf("%s has %d bytes, at most %d are allowed", quote(s), len(s), maxSubdomain)
	}
	start := 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			continue
		}
		if !isLabel(s[start:i]) {
			return fmt.Sprintf("%s is no DNS subdomain: use a-z, 0-9 and, inside, '-' and '.'", quote(s))
		}
		start = i + 1
	}
	return ""
}

// isLabel reports whether s consists of the characters of a DNS label, whatever its length.
func isLabel(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
