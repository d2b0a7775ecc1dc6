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
	PID     int    `json:"pid"`
	Command string `json:"command"` // its arguments, separated by spaces
	// Embedded says that the program can do without: k3s and kubelite run kube-proxy inside
	// unless told not to, by an argument or by a configuration that is not looked at.
	Embedded bool `json:"embedded,omitempty"`
}

// Processes lists the live kube-proxies under root, a mounted proc file system that shows
// the node's processes. Processes that end meanwhile are left out.
func Processes(root string) (list []Process, err error) {
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
		if p, ok := newProcess(pid, data); ok {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Process) int { return a.PID - b.PID })
	return list, nil
}

// newProcess judges a process by its arguments, each of which ends with a zero byte. Those
// that have set a title of their own, as k3s does, separate them by spaces.
func newProcess(pid int, cmdline []byte) (Process, bool) {
	args := strings.FieldsFunc(string(cmdline), func(c rune) bool { return c == 0 || c == ' ' })
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
