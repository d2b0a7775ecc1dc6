package conntrack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// kubeProxyDefaults is what an empty KubeProxyConfiguration means.
var kubeProxyDefaults = Settings{MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour,
	TCPCloseWait: time.Hour}

func TestApply(t *testing.T) {
	tests := []struct {
		name     string
		settings Settings
		cpus     int
		have     string // "name value" lines before
		want     string // what Apply changed
	}{{
		name:     "defaults on a small node",
		settings: kubeProxyDefaults,
		cpus:     2,
		have:     "max 65536\nbuckets 16384\ntcp_timeout_established 432000\ntcp_timeout_close_wait 60",
		want:     "max 131072\nbuckets 32768\ntcp_timeout_established 86400\ntcp_timeout_close_wait 3600",
	}, {
		name:     "many CPUs",
		settings: Settings{MaxPerCore: 32768, Min: 131072},
		cpus:     16,
		have:     "max 65536\nbuckets 16384",
		want:     "max 524288\nbuckets 131072",
	}, {
		name:     "more than the limit",
		settings: Settings{MaxPerCore: 32768, Min: 131072},
		cpus:     256,
		have:     "max 65536\nbuckets 16384",
		want:     "max 1048576\nbuckets 262144",
	}, {
		name:     "buckets are not made fewer",
		settings: Settings{MaxPerCore: 32768},
		cpus:     2,
		have:     "max 262144\nbuckets 262144",
		want:     "max 65536",
	}, {
		name:     "size untouched, timeouts set",
		settings: Settings{Min: 131072, TCPBeLiberal: true, UDP: 30500 * time.Millisecond, UDPStream: 2 * time.Minute},
		cpus:     2,
		have:     "tcp_be_liberal 0\nudp_timeout 29\nudp_timeout_stream 119",
		want:     "tcp_be_liberal 1\nudp_timeout 30\nudp_timeout_stream 120",
	}, {
		name:     "nothing differs",
		settings: Settings{TCPCloseWait: time.Hour, TCPBeLiberal: true},
		have:     "tcp_timeout_close_wait 3600\ntcp_be_liberal 1",
	}, {
		name: "nothing wanted",
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := sysctls(t, tt.have)
			var changed []string
			for _, s := range Apply(tt.settings, root, tt.cpus) {
				short := strings.TrimPrefix(s.Name, "net.netfilter.nf_conntrack_")
				if s.Err != nil {
					t.Error(s.Err)
				}
				if s.Changed {
					changed = append(changed, short+" "+read(t, root, short))
				}
			}
			if got := strings.Join(changed, "\n"); got != tt.want {
				t.Errorf("changed\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// sysctls makes a /proc/sys with the nf_conntrack sysctls listed as "name value" lines.
func sysctls(t *testing.T, list string) (root string) {
	t.Helper()
	root = t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "net/netfilter"), 0o755); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(list) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err := os.WriteFile(sysctlPath(root, name), []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func sysctlPath(root, short string) string {
	return filepath.Join(root, "net/netfilter/nf_conntrack_"+short)
}

func read(t *testing.T, root, short string) string {
	t.Helper()
	text, err := os.ReadFile(sysctlPath(root, short))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestApplyErrors(t *testing.T) {
	root := sysctls(t, "tcp_timeout_established many\nudp_timeout 30")
	got := errorTexts(Apply(Settings{
		TCPEstablished: time.Hour, TCPCloseWait: time.Hour, UDP: time.Minute,
	}, root, 2))
	want := []string{
		`sysctl net.netfilter.nf_conntrack_tcp_timeout_established: want 3600, have "many\n", which is not a number; ` +
			`set it on the node (sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=3600) or in an init container that may write /proc/sys`,
		`sysctl net.netfilter.nf_conntrack_tcp_timeout_close_wait: want 3600, cannot be read: no such file or directory; ` +
			`load the kernel module nf_conntrack (modprobe nf_conntrack)`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if value := read(t, root, "udp_timeout"); value != "60" {
		t.Errorf("udp_timeout is %s, want 60: one error must not keep the rest from being set", value)
	}
}

// TestApplyReadOnly uses a mount that is really read-only, as /proc/sys in a container.
func TestApplyReadOnly(t *testing.T) {
	lab.New(t)
	root := sysctls(t, "udp_timeout 30")
	mountReadOnly(t, root)
	got := errorTexts(Apply(Settings{UDP: time.Minute}, root, 2))
	want := []string{`sysctl net.netfilter.nf_conntrack_udp_timeout: want 60, have 30: read-only file system; ` +
		`set it on the node (sysctl -w net.netfilter.nf_conntrack_udp_timeout=60) or in an init container that may write /proc/sys`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// mountReadOnly makes dir read-only in a mount namespace of this thread.
func mountReadOnly(t *testing.T, dir string) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	must(unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS))
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	must(unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	t.Cleanup(func() { must(unix.Unmount(dir, unix.MNT_DETACH)) }) // or TempDir cannot remove it
}

func errorTexts(list []Sysctl) (texts []string) {
	for _, s := range list {
		if s.Err != nil {
			texts = append(texts, s.Err.Error())
		}
	}
	return texts
}

func TestUsage(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "net/netfilter")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Usage(root); err == nil || !strings.HasPrefix(err.Error(), "sysctl net.netfilter.nf_conntrack_") {
		t.Errorf("without the sysctls: %v", err)
	}
	for name, text := range map[string]string{"nf_conntrack_count": "17\n", "nf_conntrack_max": "262144\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if entries, limit, err := Usage(root); entries != 17 || limit != 262144 || err != nil {
		t.Errorf("%d, %d, %v", entries, limit, err)
	}
}
