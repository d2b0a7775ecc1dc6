package legacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
)

// TestBlobFromKernel decodes and encodes real tables: the bytes must be the same.
func TestBlobFromKernel(t *testing.T) {
	for _, f := range nft.Families {
		t.Run(f.String(), func(t *testing.T) {
			newNode(t)
			restore(t, f, Xtables, shape(f).IPTables())
			s := openTestSocket(t, f)
			for _, table := range iptablesTables {
				x, err := s.read(table)
				if err != nil {
					t.Fatal(err)
				}
				hooks, data, err := x.rules.encode()
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(data, x.data) || normal(hooks) != normal(x.hooks) {
					t.Errorf("table %s is another after decoding and encoding", table)
				}
			}
		})
	}
}

// openTestSocket opens a socket that is closed with the test.
func openTestSocket(t *testing.T, f nft.Family) *socket {
	t.Helper()
	s, err := openSocket(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// TestReplaceRefused offers a table for another number of rules than there is.
func TestReplaceRefused(t *testing.T) {
	newNode(t)
	restore(t, nft.IP, Xtables, shape(nft.IP).IPTables())
	before := save(t, nft.IP, Xtables)
	s := openTestSocket(t, nft.IP)
	x, err := s.read("nat")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.replace("nat", x.hooks.entries-1, x.hooks, x.data); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("replaced a table that another program had changed: %v", err)
	}
	if after := save(t, nft.IP, Xtables); legacytest.Proxys(after) != legacytest.Proxys(before) {
		t.Error("a refused replacement changed the table")
	}
}

// TestEqual tells rules apart, but not their counters.
func TestEqual(t *testing.T) {
	newNode(t)
	restore(t, nft.IP, Xtables, shape(nft.IP).IPTables())
	s := openTestSocket(t, nft.IP)
	read := func() *xtable {
		x, err := s.read("filter")
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	first := read()
	lab.Run(t, "", "iptables-legacy", "-Z")
	if !first.equal(read()) {
		t.Error("counters make a difference")
	}
	lab.Run(t, "", "iptables-legacy", "-R", "ADMIN", "1", "-p", "tcp", "-m", "multiport", "--dports", "22,443,8000:8081",
		"-g", "ZZZ-LAST")
	if first.equal(read()) {
		t.Error("another port makes no difference")
	}
}

// TestConcurrentWriter removes while another program adds rules: all of them must be there
// afterwards. The second writer has another lock, as in a container without the host's.
func TestConcurrentWriter(t *testing.T) {
	t.Run("with the lock", func(t *testing.T) { removeUnderWriter(t, newNode(t)) })
	t.Run("without", func(t *testing.T) {
		n := newNode(t)
		n.Lock = filepath.Join(t.TempDir(), "another.lock")
		removeUnderWriter(t, n)
	})
}

// removeUnderWriter removes kube-proxy's rules while a script appends some to ZZZ-LAST. The
// script tries again if the table was another when it wanted to write.
func removeUnderWriter(t *testing.T, n Node) {
	t.Helper()
	restore(t, nft.IP, Xtables, shape(nft.IP).IPTables())
	writer := exec.Command("sh", "-c",
		`for i in $(seq 40); do until iptables-legacy -w -t nat -A ZZZ-LAST -p tcp --dport $i -j RETURN; do :; done; echo; done`)
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it has begun
		t.Fatal(err)
	}
	if err := n.Remove(t.Context(), Selector{}); err != nil && !errors.Is(err, errCounters) {
		t.Error(err)
	}
	if err := writer.Wait(); err != nil {
		t.Fatal(err)
	}
	saved := save(t, nft.IP, Xtables)
	if left := legacytest.Proxys(saved); left != "" {
		t.Errorf("left of kube-proxy's:\n%s", left)
	}
	for i := range 40 { // one may be there twice, if the script lost the race after it had written
		if rule := fmt.Sprintf("-A ZZZ-LAST -p tcp -m tcp --dport %d -j RETURN", i+1); !strings.Contains(saved, rule) {
			t.Errorf("the new rule %s is gone", rule)
		}
	}
}

// TestCountersUnderTraffic counts packets in a foreign rule while its table is replaced.
func TestCountersUnderTraffic(t *testing.T) {
	n := newNode(t)
	restore(t, nft.IP, Xtables, shape(nft.IP).IPTables())
	lab.Run(t, "", "ip", "link", "set", "lo", "up")
	lab.Run(t, "", "iptables-legacy", "-I", "OUTPUT", "-p", "udp", "--dport", "4000", "-m", "comment",
		"--comment", "counted")
	server, err := net.ListenPacket("udp", "127.0.0.1:4000")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := net.Dial("udp", "127.0.0.1:4000")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	done, sent := make(chan struct{}), make(chan int)
	go send(client, done, sent)
	remove(t, n, Selector{})
	close(done)
	total := <-sent
	want := fmt.Sprintf("[%d:%d] -A OUTPUT -p udp -m udp --dport 4000", total, 29*total)
	if saved := save(t, nft.IP, Xtables); !strings.Contains(saved, want) {
		t.Errorf("no %q among\n%s", want, legacytest.Foreign(saved))
	}
}

// send sends datagrams of one byte until done and then tells how many.
func send(c net.Conn, done <-chan struct{}, sent chan<- int) {
	n := 0
	for {
		select {
		case <-done:
			sent <- n
			return
		default:
			if _, err := c.Write([]byte{0}); err == nil {
				n++
			}
		}
	}
}

// TestLocked waits for the lock as long as it may.
func TestLocked(t *testing.T) {
	n := newNode(t)
	restore(t, nft.IP, Xtables, shape(nft.IP).IPTables())
	file, err := os.OpenFile(n.Lock, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	want := "an iptables program holds " + n.Lock + ": context deadline exceeded"
	err = n.Remove(ctx, Selector{Backends: []Backend{Xtables}})
	if err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

// TestUnprivileged looks and removes without any capability.
func TestUnprivileged(t *testing.T) {
	n := newNode(t)
	restore(t, nft.IP, Xtables, shape(nft.IP).IPTables())
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil { // of this thread, which ends with the test
		t.Fatal(err)
	}
	inv := take(t, n)
	var got []string
	for _, a := range inv.Plan() {
		got = append(got, a.String())
	}
	want := []string{
		"legacy ip: everything here (could not be read): needs CAP_NET_ADMIN, as root, in the node's network namespace",
		"nft-compat: everything here (could not be read): needs CAP_NET_ADMIN, as root, in the node's network namespace",
		"kube-proxy-nftables: everything here (could not be read): needs CAP_NET_ADMIN, as root, in the node's network " +
			"namespace",
		"ipvs: everything here (could not be read): needs CAP_NET_ADMIN, as root, in the node's network namespace",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("plan:\n%s", strings.Join(got, "\n"))
	}
	if err := n.Remove(t.Context(), Selector{}); err == nil || !strings.Contains(err.Error(), "needs CAP_NET_ADMIN") {
		t.Errorf("removal without privilege: %v", err)
	}
}

// normal returns hooks without the offsets of base chains that the table does not have.
func normal(h hookTable) hookTable {
	for i := range numHooks {
		if h.valid&(1<<i) == 0 {
			h.entry[i], h.underflow[i] = 0, 0
		}
	}
	return h
}

// TestCommandsOfUnknownFormError runs the commands that the error for an unknown form recommends.
func TestCommandsOfUnknownFormError(t *testing.T) {
	for _, f := range nft.Families {
		t.Run(f.String(), func(t *testing.T) {
			newNode(t)
			restore(t, f, Xtables, shape(f).IPTables())
			before := save(t, f, Xtables)
			s := openTestSocket(t, f)
			for _, table := range iptablesTables {
				lab.Run(t, "", "sh", "-c", s.byHand(table))
			}
			after := save(t, f, Xtables)
			if left := legacytest.Proxys(after); left != "" {
				t.Errorf("left of kube-proxy's:\n%s", left)
			}
			if diff := cmp.Diff(legacytest.Foreign(before), legacytest.Foreign(after)); diff != "" {
				t.Errorf("foreign rules (-before +after):\n%s", diff)
			}
		})
	}
}
