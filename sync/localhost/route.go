package localhost

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// routeLocalnet lets packets of loopback addresses leave and enter by other interfaces
// (Documentation/networking/ip-sysctl.rst).
const routeLocalnet = "net/ipv4/conf/all/route_localnet"

// Route makes the kernel route packets from and to 127.0.0.1; root is where /proc/sys is.
// It reports whether it changed anything.
func Route(root string) (changed bool, err error) {
	path := filepath.Join(root, routeLocalnet)
	value, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(value)) == "1" {
		return false, nil
	}
	if err == nil {
		err = os.WriteFile(path, []byte("1"), 0)
	}
	if err != nil {
		return false, fmt.Errorf("node ports at 127.0.0.1 need the sysctl net.ipv4.conf.all.route_localnet=1: %w; set it on the host", err)
	}
	return true, nil
}
