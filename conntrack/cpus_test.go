package conntrack

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCountCPUs(t *testing.T) {
	tests := []struct {
		list string
		want int
		err  string
	}{
		{list: "0", want: 1},
		{list: "0-3", want: 4},
		{list: "0-3,8,10-11", want: 7},
		{list: "", err: `"" in "" is not a CPU or an ascending range of CPUs`},
		{list: "3-0", err: `"3-0" in "3-0" is not a CPU or an ascending range of CPUs`},
		{list: "0-3,2", err: `"2" in "0-3,2" is not a CPU or an ascending range of CPUs`},
		{list: "0-1-2", err: `"0-1-2" in "0-1-2" is not a CPU or an ascending range of CPUs`},
		{list: "0-99999999999", err: `"0-99999999999" in "0-99999999999" is not a CPU or an ascending range of CPUs`},
	}
	for _, tt := range tests {
		n, err := countCPUs(tt.list)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if n != tt.want || text != tt.err {
			t.Errorf("countCPUs(%q) = %d, %q, want %d, %q", tt.list, n, text, tt.want, tt.err)
		}
	}
}

func TestOnlineCPUs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "online")
	if err := os.WriteFile(path, []byte("0-63\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := OnlineCPUs(path); n != 64 || err != nil {
		t.Errorf("got %d, %v, want 64", n, err)
	}
	want := "count online CPUs: open " + path + "x: no such file or directory"
	if _, err := OnlineCPUs(path + "x"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func FuzzCountCPUs(f *testing.F) {
	for _, seed := range []string{"0", "0-3,8", "", "-", ",", "1-0", "65535"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		n, err := countCPUs(list)
		if (err == nil) != (n > 0) || n > maxCPU {
			t.Errorf("countCPUs(%q) = %d, %v", list, n, err)
		}
	})
}
