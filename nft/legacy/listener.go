package legacy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// proxyPorts are where every kube-proxy listens unless its configuration says otherwise:
// for health checks and for metrics.
var proxyPorts = [...]uint16{10256, 10249}

// listeners are the inodes of the sockets that listen on one of proxyPorts in the network
// namespace of the caller, with the port.
type listeners map[string]uint16

// readListeners reads the tables of TCP sockets under root, a proc file system. Known is
// false if there are none.
func readListeners(root string) (found listeners, known bool, err error) {
	found = listeners{}
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(root, "thread-self", "net", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		known = true
		for line := range strings.Lines(string(text)) {
			found.add(line)
		}
	}
	return found, known, nil
}

// add takes a line of /proc/net/tcp: number, local address and port in hexadecimal, remote
// address, state and so on; the tenth field is the inode.
func (l listeners) add(line string) {
	const listening = "0A" // TCP_LISTEN
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != listening {
		return
	}
	_, hex, _ := strings.Cut(fields[1], ":")
	port, err := strconv.ParseUint(hex, 16, 16)
	for _, p := range proxyPorts {
		if err == nil && uint16(port) == p {
			l["socket:["+fields[9]+"]"] = p
		}
	}
}

// take removes the sockets that a process has open, and reports whether there were any. dir
// is the directory of the process; of one whose files are hidden from us, it takes nothing.
func (l listeners) take(dir string) (any bool) {
	links, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return false
	}
	for _, link := range links {
		target, err := os.Readlink(filepath.Join(dir, "fd", link.Name()))
		if _, ok := l[target]; ok && err == nil {
			delete(l, target)
			any = true
		}
	}
	return any
}

// hidden describes who owns what is left when all processes that can be seen have been
// asked: a container that has a process namespace of its own sees the node's sockets, but
// not its processes.
func (l listeners) hidden() (list []Process) {
	for _, port := range proxyPorts {
		for _, p := range l {
			if p == port {
				return []Process{{Command: fmt.Sprintf("hidden from here; it listens on TCP port %d, as kube-proxy does", port)}}
			}
		}
	}
	return nil
}
