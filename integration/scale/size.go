package main

import (
	"fmt"
	"strings"
)

// A size is how large a cluster is: so many Services with so many endpoints each.
type size struct{ services, endpoints int }

// String returns "SERVICESxENDPOINTS", the form that parseSizes reads.
func (s size) String() string { return fmt.Sprintf("%dx%d", s.services, s.endpoints) }

// parseSizes reads sizes that are separated by commas.
func parseSizes(text string) (sizes []size, err error) {
	for _, part := range strings.Split(text, ",") {
		var s size
		n, err := fmt.Sscanf(part+"\n", "%dx%d\n", &s.services, &s.endpoints)
		switch {
		case err != nil || n != 2:
			return nil, fmt.Errorf("size %q: want SERVICESxENDPOINTS, such as 1000x10", part)
		case s.services < 1 || s.services > maxServices || s.endpoints < 1 || s.endpoints > maxEndpoints:
			return nil, fmt.Errorf("size %q: want 1 to %d Services of 1 to %d endpoints", part, maxServices, maxEndpoints)
		case s.services*s.endpoints > maxAddresses:
			return nil, fmt.Errorf("size %q: want at most %d endpoints in all", part, maxAddresses)
		}
		sizes = append(sizes, s)
	}
	return sizes, nil
}
