package legacy

import (
	"os"
	"path/filepath"
	"strconv"
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
