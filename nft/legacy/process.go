package legacy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// A Process is a program that writes, or may write, kube-proxy's rules: while it runs, removed
// rules come back.
type Process struct {
	PID     int    `json:"pid"`     // 0 if it cannot be seen
	Command string `json:"command"` // its arguments, separated by spaces
	// Embedded says that kube-proxy is only part of the program: k3s and kubelite run kube-proxy
	// inside by default.
	Embedded bool `json:"embedded,omitempty"`
}

// String names the process for an operator.
func (p *Process) String() string { return fmt.Sprintf("pid %d: %s", p.PID, nft.Visible(p.Command)) }

// proxyPorts are the ports on which every kube-proxy listens, unless configured otherwise: for
// health checks and for metrics.
var proxyPorts = [...]uint16{10256, 10249}

// Processes lists the live kube-proxies under root, a mounted proc file system that shows the
// node's processes. A name alone proves nothing, because any pod can choose its arguments: the list
// leaves out processes in other network or user namespaces, and processes without CAP_NET_ADMIN. It
// also leaves out processes that end meanwhile. An embedded kube-proxy is alive if it listens on
// kube-proxy's ports. If there is no visible kube-proxy, but a hidden process listens there, the
// list has that process without a number. A port proves nothing either, because any process can
// listen there: where root shows every process of the machine, none is hidden but one whose open
// files are needed to tell whether a program runs an embedded kube-proxy.
func Processes(root string) ([]Process, error) {
	list, pids, err := scan(root)
	if err != nil {
		return nil, err
	}
	embedded := slices.ContainsFunc(list, func(p Process) bool { return p.Embedded })
	if len(list) > 0 && !embedded {
		return list, nil
	}
	isProxy := func(_ string, port uint16) bool { return slices.Contains(proxyPorts[:], port) }
	sockets, known, err := readListeners(root, isProxy)
	if err != nil || !known || !embedded && (len(sockets) == 0 || showsAll(root)) {
		return list, err
	}
	listens := map[int]bool{}
	for _, pid := range pids {
		dir := filepath.Join(root, strconv.Itoa(pid), "fd")
		links, _ := os.ReadDir(dir) // the links of a hidden process cannot be read
		for _, link := range links {
			target, err := os.Readlink(filepath.Join(dir, link.Name()))
			if _, ok := sockets[target]; ok && err == nil {
				delete(sockets, target)
				listens[pid] = true
			}
		}
	}
	list = slices.DeleteFunc(list, func(p Process) bool { return p.Embedded && !listens[p.PID] })
	if len(list) > 0 {
		return list, nil
	}
	// No visible process is a kube-proxy. A container with a process namespace of its own sees the
	// node's sockets, but not its processes.
	for _, port := range proxyPorts {
		for _, p := range sockets {
			if p == port {
				return []Process{{Command: fmt.Sprintf("hidden from here; it listens on TCP port %d, as kube-proxy does", port)}},
					nil
			}
		}
	}
	return list, nil
}

// showsAll reports whether root shows every process of the machine, and not just those of a
// container: then the second one is the kernel's, which starts all other threads of the kernel.
func showsAll(root string) bool {
	const kernelThread = 0x200000 // PF_KTHREAD of linux/sched.h
	text, err := os.ReadFile(filepath.Join(root, "2", "stat"))
	if err != nil {
		return false
	}
	// After the name, in parentheses: state, parent, group, session, terminal, its group, flags.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&kernelThread != 0
}

// Listening returns the ports at which a TCP socket of the caller's network namespace listens, other than at a loopback
// address. root is a proc file system.
func Listening(root string) (found map[uint16]bool, err error) {
	const loopback4, loopback6 = "0100007F", "00000000000000000000000001000000"
	sockets, _, err := readListeners(root, func(addr string, _ uint16) bool {
		return addr != loopback4 && addr != loopback6
	})
	found = make(map[uint16]bool, len(sockets))
	for _, port := range sockets {
		found[port] = true
	}
	return found, err
}

// readListeners returns the sockets that listen in the caller's network namespace at an address, in hexadecimal as the
// kernel prints it, and a port that are wanted: their link in a proc file system, and the port. known is false if root
// has no tables of TCP sockets.
func readListeners(root string, wanted func(addr string, port uint16) bool) (found map[string]uint16, known bool,
	err error) {
	const listening = "0A" // TCP_LISTEN
	found = map[string]uint16{}
	for _, name := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join(root, "thread-self", "net", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		defer file.Close()
		known = true
		// A line has: number, local address and port in hexadecimal, remote address, state and
		// so on; the tenth field is the inode. The kernel lists listening sockets before all
		// others, of which a node may have very many.
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[0] == "sl" {
				continue
			}
			if fields[3] != listening {
				break
			}
			addr, hex, _ := strings.Cut(fields[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			if err == nil && wanted(addr, uint16(port)) {
				found["socket:["+fields[9]+"]"] = uint16(port)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, false, err
		}
	}
	return found, known, nil
}

// Arguments returns the arguments of a process, the program first. dir is its directory in a proc file system. It
// returns none of the kernel's own threads, and none of a process that is gone or hidden from us.
func Arguments(dir string) []string {
	const most = 4096 // a process may have megabytes of arguments, and a pod thousands of processes
	file, err := os.Open(filepath.Join(dir, "cmdline"))
	if err != nil {
		return nil
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return nil
	}
	// Each argument ends with a zero byte. Processes that set their own title, as k3s does, separate arguments by spaces.
	return strings.FieldsFunc(string(text), func(c rune) bool { return c == 0 || c == ' ' })
}

// scan lists the processes whose arguments are a kube-proxy's and that can write its rules, and the
// numbers of all processes.
func scan(root string) (list []Process, pids []int, err error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, nil, err
	}
	us := filepath.Join(root, "thread-self")
	network, users := networkOf(us), usersOf(us)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		pids = append(pids, pid)
		dir := filepath.Join(root, e.Name())
		p, ok := newProcess(pid, Arguments(dir))
		if ok && (network == 0 || networkOf(dir) == network) && (users == "" || usersOf(dir) == users) && mayProgram(dir) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Process) int { return a.PID - b.PID })
	return list, pids, nil
}

// networkOf distinguishes network namespaces: it returns the inode number of a file that a process
// sees in its directory net, or 0 if there is no such file, as when the process has ended. The
// kernel makes new files for each network namespace. Any process can stat them, while the link
// ns/net of another user's process needs CAP_SYS_PTRACE.
func networkOf(process string) uint64 {
	var stat unix.Stat_t
	if unix.Stat(filepath.Join(process, "net", "dev"), &stat) != nil {
		return 0
	}
	return stat.Ino
}

// usersOf distinguishes user namespaces: it returns the map of user numbers of a process, or "" if
// there is none. Any user of the node has all capabilities in a user namespace of his own, and none
// of them over our network namespace; only root can give it the map that ours has.
func usersOf(process string) string {
	text, _ := os.ReadFile(filepath.Join(process, "uid_map"))
	return string(text)
}

// mayProgram reports whether a process has CAP_NET_ADMIN, as far as its status shows. Without it
// no kube-proxy writes rules.
func mayProgram(process string) bool {
	text, err := os.ReadFile(filepath.Join(process, "status"))
	if err != nil {
		return true
	}
	_, rest, found := strings.Cut(string(text), "\nCapPrm:")
	line, _, _ := strings.Cut(rest, "\n")
	permitted, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return !found || err != nil || permitted&(1<<unix.CAP_NET_ADMIN) != 0
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
		agent := len(rest) > 0 && (rest[0] == "server" || rest[0] == "agent") &&
			!slices.Contains(rest, "--disable-kube-proxy")
		return p, program == "kubelite" || agent
	}
	return Process{}, false
}
