package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

func TestParseSizes(t *testing.T) {
	sizes, err := parseSizes("1000x10,5000x50")
	if err != nil || len(sizes) != 2 || sizes[0] != (size{1000, 10}) || sizes[1].String() != "5000x50" {
		t.Errorf("got %v, %v", sizes, err)
	}
	for _, tt := range []struct{ text, err string }{
		{"", `size "": want SERVICESxENDPOINTS, such as 1000x10`},
		{"1000", `size "1000": want SERVICESxENDPOINTS, such as 1000x10`},
		{"1x2x3", `size "1x2x3": want SERVICESxENDPOINTS, such as 1000x10`},
		{"0x10", `size "0x10": want 1 to 524288 Services of 1 to 100000 endpoints`},
		{"1x100001", `size "1x100001": want 1 to 524288 Services of 1 to 100000 endpoints`},
		{"500000x100", `size "500000x100": want at most 4194304 endpoints in all`},
	} {
		if _, err := parseSizes(tt.text); err == nil || err.Error() != tt.err {
			t.Errorf("%q: got %v, want %s", tt.text, err, tt.err)
		}
	}
}

func TestAddressesAreApart(t *testing.T) {
	s := size{30000, 10}
	last := s.endpointsOf(s.services - 1)[s.endpoints-1]
	fresh := sequence{}
	switch first := fresh.next(); {
	case !podCIDR.Contains(last), !podCIDR.Contains(first), !first.Less(clientAddress.Addr()), !last.Less(first):
		t.Errorf("last endpoint %s, first newcomer %s", last, first)
	case !serviceCIDR.Contains(clusterIP(maxServices + maxServices/4)):
		t.Errorf("%s is outside of %s", clusterIP(maxServices+maxServices/4), serviceCIDR)
	}
}

// TestSYN computes the checksum over a packet with its checksum, which is 0 if that is right.
func TestSYN(t *testing.T) {
	p := syn(clientAddress.Addr(), netip.MustParseAddr("10.96.0.17"), 4321)
	if got := checksum(p[12:], 6+20); got != 0 {
		t.Errorf("checksum is off by %#x", got)
	}
	if port := binary.BigEndian.Uint16(p[20:]); port != 4321 {
		t.Errorf("source port %d", port)
	}
}

func TestSheet(t *testing.T) {
	small, large := size{1000, 10}, size{30000, 10}
	s := newSheet([]size{small, large})
	s.duration(small, "one change: p50", 62800*time.Nanosecond)
	s.duration(large, "one change: p50", 1234567*time.Microsecond)
	s.set(large, "batch length", octets, 1<<20)
	var table, bench bytes.Buffer
	s.writeTable(&table)
	s.writeBench(&bench)
	wantTable := "| | 1000x10 | 30000x10 |\n|---|--:|--:|\n| one change: p50 | 62.8 µs | 1.23s |\n| batch length |  | " +
		"1024 KiB |\n"
	wantBench := "goos: linux\nBenchmarkScale/one-change-p50/services=1000/endpoints=10 1 6.28e-05 sec/op\n" +
		"BenchmarkScale/one-change-p50/services=30000/endpoints=10 1 1.234567 " +
		"sec/op\nBenchmarkScale/batch-length/services=30000/endpoints=10 1 1.048576e+06 B\n"
	if table.String() != strings.Replace(wantTable, "1024 KiB", "1 MiB", 1) {
		t.Errorf("table:\n%s", table.String())
	}
	if bench.String() != wantBench {
		t.Errorf("bench:\n%s", bench.String())
	}
}

// TestPage writes the files of a page.
func TestPage(t *testing.T) {
	s := newSheet([]size{{1000, 10}, {30000, 10}, {5000, 50}})
	for i, at := range s.sizes {
		s.duration(at, packetOwn, time.Duration(i+1)*time.Microsecond)
		s.duration(at, packetMap, time.Duration(i+1)*time.Microsecond/2)
	}
	dir := t.TempDir()
	if err := write(dir, []string{"scale", "-sizes", "1000x10"}, s, &comparison{}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"README.md", "bench.txt"} {
		content, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || len(content) == 0 {
			t.Errorf("%s: %d bytes, %v", file, len(content), err)
		}
	}
	page, _ := os.ReadFile(filepath.Join(dir, "README.md"))
	if !strings.Contains(string(page), "- Command: scale -sizes 1000x10\n") {
		t.Errorf("the page does not show the command:\n%s", page)
	}
}

func TestQuantile(t *testing.T) {
	list := []time.Duration{5, 1, 4, 2, 3}
	if quantile(list, 0.5) != 3 || quantile(list, 0.99) != 5 || least(list) != 1 {
		t.Errorf("median %d, p99 %d, least %d", quantile(list, 0.5), quantile(list, 0.99), least(list))
	}
}

// TestProgramsOfProxy looks at a proxy that runs programs: its own CPU time and memory are next to nothing.
func TestProgramsOfProxy(t *testing.T) {
	p, err := lab.StartProcess("sh", "-c",
		"i=0; ( while [ $i -lt 100000 ]; do i=$((i+1)); done ); echo >&2 counted; "+
			"sleep 1000 & wait")
	if err != nil {
		t.Fatal(err)
	}
	m := &measured{Process: p, killed: true}
	p.AwaitLog(t, "counted")
	if used, err := m.cpu(); used < 5*tick || err != nil {
		t.Errorf("its programs have used %s of CPU time; %v", used, err)
	}
	for len(m.children()) == 0 {
		time.Sleep(tick)
	}
	child := m.children()[0]
	own, err := m.memory("VmRSS")
	if err != nil {
		t.Fatal(err)
	}
	highest := m.watchMemory()
	time.Sleep(10 * tick)
	if sum := highest(); sum <= own {
		t.Errorf("%.0f bytes with its programs, %.0f without", sum, own)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", child)); err == nil {
		t.Error("its program goes on")
	}
}
