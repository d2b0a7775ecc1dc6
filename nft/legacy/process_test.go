package legacy

import (
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProcesses(t *testing.T) {
	root := t.TempDir()
	for pid, cmdline := range []string{
		1:  "/sbin/init\x00",
		2:  "", // a kernel thread
		3:  "/usr/local/bin/kube-proxy\x00--config=/var/lib/kube-proxy/config.conf\x00",
		4:  "kube-proxy\x00--cleanup\x00",
		5:  "/hyperkube\x00proxy\x00--v=2\x00",
		6:  "/hyperkube\x00kubelet\x00",
		7:  "/usr/local/bin/k3s server\x00\x00\x00\x00", // a title of its own
		8:  "/usr/local/bin/k3s\x00agent\x00--disable-kube-proxy\x00",
		9:  "k3s\x00kubectl\x00get\x00nodes\x00",
		10: "/snap/microk8s/1/kubelite\x00--proxy-args-file=x\x00",
		11: "vi\x00kube-proxy\x00",
	} {
		dir := filepath.Join(root, strconv.Itoa(pid))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cmdline"), []byte(cmdline), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "sys"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := Processes(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []Process{
		{PID: 3, Command: "/usr/local/bin/kube-proxy --config=/var/lib/kube-proxy/config.conf"},
		{PID: 5, Command: "/hyperkube proxy --v=2"},
		{PID: 7, Command: "/usr/local/bin/k3s server", Embedded: true},
		{PID: 10, Command: "/snap/microk8s/1/kubelite --proxy-args-file=x", Embedded: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := Processes(filepath.Join(root, "none")); err == nil {
		t.Error("no error without a proc file system")
	}
}

// TestWhichProcessIsKubeProxy: a process is a kube-proxy if it has the name, is in our network namespace, may
// program it, and lives.
func TestWhichProcessIsKubeProxy(t *testing.T) {
	root := t.TempDir()
	ours, theirs := filepath.Join(root, "ours"), filepath.Join(root, "theirs")
	for _, network := range []string{ours, theirs} {
		if err := os.MkdirAll(network, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(network, "dev"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat("--v=2\x00", 1<<18)
	for dir, p := range map[string]struct{ network, cmdline, status string }{
		"thread-self": {network: ours},
		"1":           {ours, "kube-proxy\x00", "Name:\tkube-proxy\nCapPrm:\t000001ffffffffff\n"},
		"2":           {theirs, "kube-proxy\x00", "Name:\tkube-proxy\nCapPrm:\t000001ffffffffff\n"},
		"3":           {ours, "kube-proxy\x00", "Name:\tkube-proxy\nCapPrm:\t00000000a80425fb\n"}, // a container's
		"4":           {filepath.Join(root, "gone"), "kube-proxy\x00", ""},
		"5":           {ours, "kube-proxy\x00" + long, "Name:\tCapPrm:\\n1000\nCapPrm:\t0000000000001000\n"},
		// in a user namespace of its own
		"6": {ours, "kube-proxy\x00", "Name:\tkube-proxy\nCapPrm:\t000001ffffffffff\n"},
	} {
		users := "         0          0 4294967295\n"
		if dir == "6" {
			users = "         0      65534          1\n"
		}
		path := filepath.Join(root, dir)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Symlink(p.network, filepath.Join(path, "net")),
			os.WriteFile(filepath.Join(path, "cmdline"), []byte(p.cmdline), 0o600),
			os.WriteFile(filepath.Join(path, "uid_map"), []byte(users), 0o600),
			os.WriteFile(filepath.Join(path, "status"), []byte(p.status), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Processes(root)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, p := range got {
		pids = append(pids, p.PID)
		if len(p.Command) > 4096 {
			t.Errorf("process %d: %d bytes of its arguments were read", p.PID, len(p.Command))
		}
	}
	if diff := cmp.Diff([]int{1, 5}, pids); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestProcShowsAllProcesses: a /proc that shows the kernel's threads hides no process.
func TestProcShowsAllProcesses(t *testing.T) {
	for _, tt := range []struct {
		name, stat string
		commands   map[string]string
		want       int
	}{
		{"the node's processes", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0\n", nil, 0},
		{"with an embedded one", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0\n", map[string]string{"5": "k3s\x00server\x00"}, 1},
		{"a container's", "2 (kthreadd) S 0 0 0 0 -1 2129984) S 1 2 2 0 -1 4194560 0 0\n", nil, 1},
		{"cut", "2 (kthreadd) S 0", nil, 1},
		{"nothing", "", nil, 1},
	} {
		root := proc(t, procNetTCP, tt.commands, nil)
		if err := errors.Join(os.MkdirAll(filepath.Join(root, "2"), 0o700), os.WriteFile(filepath.Join(root, "2", "stat"),
			[]byte(tt.stat), 0o600)); err != nil {
			t.Fatal(err)
		}
		got, err := Processes(root)
		if err != nil || len(got) != tt.want {
			t.Errorf("%s: %v, %v, want %d", tt.name, got, err, tt.want)
		}
	}
}

// procNetTCP is of the form of /proc/net/tcp: a kube-proxy listens on 10256 by inode 77, a
// k3s on 10249 by inode 78, and a connection from port 10256 is established by inode 79.
const procNetTCP = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:2810 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0 100 0 0 10 0
   1: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 78 1 0 100 0 0 10 0
   2: 0100007F:2810 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 79 1 0 100 0 0 10 0
   3: short
`

// proc writes a proc file system with processes by their command lines and open sockets.
func proc(t *testing.T, tcp string, commands map[string]string, sockets map[string]string) string {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(root, "thread-self/net/tcp"), tcp)
	for pid, command := range commands {
		write(filepath.Join(root, pid, "cmdline"), command)
	}
	for pid, socket := range sockets {
		dir := filepath.Join(root, pid, "fd")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(socket, filepath.Join(dir, "3")); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestListeners(t *testing.T) {
	k3s := map[string]string{"5": "k3s\x00server\x00"}
	for _, tt := range []struct {
		name     string
		tcp      string
		commands map[string]string
		sockets  map[string]string
		want     []Process
	}{
		{"an embedded one that listens", procNetTCP, k3s, map[string]string{"5": "socket:[78]"},
			[]Process{{PID: 5, Command: "k3s server", Embedded: true}}},
		{"an embedded one that does not", "", k3s, nil, nil},
		{"hidden", procNetTCP, nil, nil,
			[]Process{{Command: "hidden from here; it listens on TCP port 10256, as kube-proxy does"}}},
		{"another program that we see", procNetTCP, map[string]string{"6": "kube-nft\x00", "7": "nginx\x00"},
			map[string]string{"6": "socket:[77]", "7": "socket:[78]"}, nil},
		{"its files are hidden", procNetTCP, map[string]string{"8": "kube-proxy\x00"}, nil,
			[]Process{{PID: 8, Command: "kube-proxy"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Processes(proc(t, tt.tcp, tt.commands, tt.sockets))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" && len(tt.want)+len(got) > 0 {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestListening: programs at node ports are found, except at loopback addresses, where no node port is served.
func TestListening(t *testing.T) {
	ports := map[uint16]bool{}
	port := func(address string) uint16 {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
		ports[port] = true
		return port
	}
	everywhere, only4 := port("[::]:0"), port("0.0.0.0:0")
	port("127.0.0.1:0")
	port("[::1]:0")
	got, err := Listening("/proc")
	maps.DeleteFunc(got, func(port uint16, _ bool) bool { return !ports[port] }) // of other programs
	if want := map[uint16]bool{everywhere: true, only4: true}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v (%v), want %v", got, err, want)
	}
}
