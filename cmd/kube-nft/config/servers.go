package config

import (
	"fmt"
	"net/netip"
	"strconv"
)

// resolveServers finds out where the servers listen. The defaults follow the family of the
// bind address.
func (r *reading) resolveServers(c *Config) (err error) {
	anywhere, loopback := netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if bind, err := netip.ParseAddr(r.bindAddress); err == nil && bind.Is6() {
		anywhere, loopback = netip.IPv6Unspecified(), netip.IPv6Loopback()
	}
	if c.Healthz, err = r.resolveServer("healthz-bind-address", &r.healthz, netip.AddrPortFrom(anywhere, defaultHealthzPort)); err != nil {
		return err
	}
	if c.Metrics, err = r.resolveServer("metrics-bind-address", &r.metrics, netip.AddrPortFrom(loopback, defaultMetricsPort)); err != nil {
		return err
	}
	switch {
	case c.Healthz.IsValid() && collide(c.Healthz, c.Metrics):
		return r.invalid("metrics-bind-address", r.metrics, fmt.Sprintf("expected another port than that of %s, %s", r.name("healthz-bind-address"), r.healthz))
	case r.profiling && !c.Metrics.IsValid():
		return r.invalid("profiling", "true", fmt.Sprintf("it needs an address in %s", r.name("metrics-bind-address")))
	}
	c.BindAddressHardFail, c.Profiling = r.hardFail, r.profiling
	return nil
}

// resolveServer reads one address, of which the IP or the port can be left out, and writes
// it out in full.
func (r *reading) resolveServer(flag string, text *string, fallback netip.AddrPort) (netip.AddrPort, error) {
	switch {
	case !r.given(flag):
		*text = fallback.String()
		return fallback, nil
	case *text == "":
		return netip.AddrPort{}, nil
	}
	address, ok := parseServer(*text, fallback)
	if !ok {
		return netip.AddrPort{}, r.invalid(flag, *text, fmt.Sprintf("expected an IP address and a port such as %s", fallback))
	}
	*text = address.String()
	return address, nil
}

func parseServer(text string, fallback netip.AddrPort) (netip.AddrPort, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr, fallback.Port()), true
	}
	if text[0] == ':' {
		port, err := strconv.ParseUint(text[1:], 10, 16)
		return netip.AddrPortFrom(fallback.Addr(), uint16(port)), err == nil && port != 0
	}
	address, err := netip.ParseAddrPort(text)
	return address, err == nil && address.Port() != 0
}

// collide reports whether only one server can listen at a and b.
func collide(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && (a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}
