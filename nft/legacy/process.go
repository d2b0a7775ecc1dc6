package legacy

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Process is a program that writes kube-proxy's rules, or may: while it runs, what is
// removed comes back.
type Process struct {
	PID     int    `json:"pid"`     // 0 if it cannot be seen
	Command string `json:"command"` // its arguments, separated by spaces
	// Embedded says that the program can do without: k3s and kubelite run kube-proxy inside
	// unless told not to.
	Embedded bool `json:"embedded,omitempty"`
}

// Processes lists the live kube-proxies under root, a mounted proc file system that shows
// the node's processes. Processes that end meanwhile are left out, and so are those that are
// known to be in another network namespace: they are another node's. An embedded kube-proxy
// is alive if it listens where kube-proxy does. If none is to be seen but a process that is
// hidden from us listens there, that is the list, without a number.
func Processes(root string) ([]Process, error) {
	list, err := scan(root)
	if err != nil {
		return nil, err
	}
	sockets, known, err := readListeners(root)
	if err != nil || !known || len(sockets) == 0 && !slices.ContainsFunc(list, func(p Process) bool { return p.Embedded }) {
		return list, err
	}
	owns := map[int]bool{}
	all, err := os.ReadDir(root)
	for _, e := range all {
		if pid, notProcess := strconv.Atoi(e.Name()); notProcess == nil {
			owns[pid] = sockets.take(filepath.Join(root, e.Name()))
		}
	}
	list = slices.DeleteFunc(list, func(p Process) bool { return p.Embedded && !owns[p.PID] })
	if len(list) == 0 {
		list = sockets.hidden()
	}
	return list, err
}

// scan lists the processes that are a kube-proxy by their arguments.
func scan(root string) (list []Process, err error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, e.Name(), "cmdline"))
		if err != nil {
			continue // it is gone, or hidden from us
		}
		if p, ok := newProcess(pid, arguments(data)); ok && !elsewhere(filepath.Join(root, e.Name())) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Process) int { return a.PID - b.PID })
	return list, nil
}

// elsewhere reports whether the process with that directory is in another network namespace
// than the calling thread. In doubt it is not.
func elsewhere(dir string) bool {
	theirs, err := os.Readlink(filepath.Join(dir, "ns", "net"))
	if err != nil {
		return false
	}
	ours, err := os.Readlink("/proc/thread-self/ns/net")
	return err == nil && ours != theirs
}

// arguments cuts a command line, in which each argument ends with a zero byte. Those that
// have set a title of their own, as k3s does, separate them by spaces.
func arguments(cmdline []byte) []string {
	return strings.FieldsFunc(string(cmdline), func(c rune) bool { return c == 0 || c == ' ' })
}

// newProcess judges whether a process is a kube-proxy.
func newProcess(pid int, args []string) (Process, bool) {
	if len(args) == 0 {
		return Process{}, false // a kernel thread
	}
	p := Process{PID: pid, Command: strings.Join(args, " ")}
	program, rest := filepath.Base(args[0]), args[1:]
	switch program {
	case "kube-proxy":
		return p, !slices.Contains(rest, "--cleanup")
	case "hyperkube":
		return p, len(rest) > 0 && (rest[0] == "proxy" || rest[0] == "kube-proxy")
	case "k3s", "kubelite":
		p.Embedded = true
		return p, program == "kubelite" || runsAgent(rest)
	}
	return Process{}, false
}

// runsAgent reports whether k3s, called with args, may run kube-proxy.
func runsAgent(args []string) bool {
	if len(args) == 0 || slices.Contains(args, "--disable-kube-proxy") {
		return false
	}
	return args[0] == "server" || args[0] == "agent"
}
