package localhost

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// routeLocalnet is the sysctl that lets packets with loopback addresses leave and enter by other
// interfaces (Documentation/networking/ip-sysctl.rst).
const routeLocalnet = "net/ipv4/conf/all/route_localnet"

// Route makes the kernel route packets from and to 127.0.0.1; root is the path of /proc/sys. It
// reports whether it changed anything. The rule that keeps other hosts out must be in force before:
// after Route, nothing else keeps them out.
func Route(root string) (changed bool, err error) {
	path := filepath.Join(root, routeLocalnet)
	on, err := routed(path)
	if on {
		return false, nil
	}
	if err == nil {
		err = os.WriteFile(path, []byte("1"), 0)
	}
	if err != nil {
		return false,
			fmt.Errorf("node ports at 127.0.0.1 need the sysctl net.ipv4.conf.all.route_localnet=1: %w; set it on the host", err)
	}
	return true, nil
}

// Exposure says what the kernel leaves open if it routes loopback addresses while no rule of ours
// keeps other hosts out, and how to close it; empty if the kernel does not route them. root is the
// path of /proc/sys. Exposure does not reset the sysctl: another program may have set it.
func Exposure(root string) string {
	if on, _ := routed(filepath.Join(root, routeLocalnet)); !on {
		return ""
	}
	return "the sysctl net.ipv4.conf.all.route_localnet is 1; --localhost-nodeports and kube-proxy's iptables mode set " +
		"it. No rule of kube-nft drops connections from other hosts to 127.0.0.1. If no program on this node needs the " +
		"sysctl: sysctl -w net.ipv4.conf.all.route_localnet=0"
}

// routed reports whether the sysctl is set.
func routed(path string) (bool, error) {
	value, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(value)) == "1", err
}
