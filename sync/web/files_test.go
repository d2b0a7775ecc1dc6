package web

import "testing"

// TestPoolsLeaveFiles: three servers, the health-check node ports and the node ports at localhost, each at its bound,
// use at most four fifths of the files.
func TestPoolsLeaveFiles(t *testing.T) {
	for _, files := range []uint64{64, 256, 1024, 65536, 1 << 62} {
		pools := uint64(3*affordable(connections, files) + affordable(256, files))
		ports := files/4 + files/4    // health-check node ports, and node ports at localhost
		localhost := 2 * (files / 16) // a client and an endpoint each
		if sum := pools + ports + localhost; sum > files/5*4 {
			t.Errorf("%d of %d files", sum, files)
		}
	}
	if n := affordable(connections, 1<<20); n != connections {
		t.Errorf("%d connections with many files, want %d", n, connections)
	}
}
