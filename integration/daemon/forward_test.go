package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A firewall is a way to refuse what is forwarded, and the remedy that docs/firewalls.md has for it.
type firewall struct {
	name          string
	load          string // for the shell
	where, remedy string
}

const (
	answers    = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
	translated = "-m conntrack --ctstate DNAT -j ACCEPT"
)

var firewalls = []firewall{
	{"nft", "nft add table inet fw; nft add chain inet fw forward '{ type filter hook forward priority 0; policy drop; }'",
		"table inet fw, chain forward: its policy",
		"nft add rule inet fw forward ct status dnat accept; nft add rule inet fw forward ct state " +
			"established,related accept"},
	{"iptables-nft", "iptables-nft -P FORWARD DROP", "table ip filter, chain FORWARD: its policy",
		"iptables-nft -A FORWARD " + translated + "; iptables-nft -A FORWARD " + answers},
	{"legacy iptables", "iptables-legacy -P FORWARD DROP", "legacy iptables table filter, chain FORWARD: its policy",
		"iptables-legacy -A FORWARD " + translated + "; iptables-legacy -A FORWARD " + answers},
	{"what kube-proxy had", "iptables-legacy -P FORWARD DROP", "legacy iptables table filter, chain FORWARD: its policy",
		"iptables-legacy -I FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT; iptables-legacy -I FORWARD " + answers},
	{"the last rule", "iptables-nft -A FORWARD -p icmp -j ACCEPT; iptables-nft -A FORWARD -j REJECT",
		"table ip filter, chain FORWARD: its rule with handle", "iptables-nft -I FORWARD " + translated +
			"; iptables-nft -I FORWARD " + answers},
	{"Docker", "iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -j RETURN; " +
		"iptables-nft -A FORWARD -j DOCKER-USER; iptables-nft -A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
		"table ip filter, chain FORWARD: its policy",
		"iptables-nft -I DOCKER-USER " + translated + "; iptables-nft -I DOCKER-USER " + answers},
	{"a plug-in for other interfaces", "iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -i cali+ -j ACCEPT; " +
		"iptables-legacy -A FORWARD -o cali+ -j ACCEPT", "legacy iptables table filter, chain FORWARD: its policy",
		"iptables-legacy -A FORWARD -i pods -j ACCEPT; iptables-legacy -A FORWARD -o pods -j ACCEPT"},
	{"pod CIDR, as ufw route allow", "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD " + answers,
		"table ip filter, chain FORWARD: its policy", "iptables-nft -A FORWARD -d 10.244.0.0/16 -j ACCEPT"},
	{"the CNI plug-in firewall", "ip route add default via 192.168.0.9; iptables-legacy -P FORWARD DROP; " +
		"for pod in 10.244.0.11 10.244.0.12 10.244.0.13; do " +
		"iptables-legacy -A FORWARD -d $pod " + answers + "; iptables-legacy -A FORWARD -s $pod -j ACCEPT; done",
		"legacy iptables table filter, chain FORWARD: its policy refuses 3 of 6 kinds of connections to endpoints, " +
			"such as a masqueraded client by client",
		"iptables-legacy -A FORWARD " + translated},
	{"marks of connections", "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -m connmark --mark 1 -j ACCEPT",
		"table ip filter, chain FORWARD: its policy", "iptables-nft -A FORWARD " + translated +
			"; iptables-nft -A FORWARD " + answers},
	{"no forwarding", "sysctl -qw net.ipv4.ip_forward=0", "sysctl net.ipv4.ip_forward: 0",
		"sysctl -qw net.ipv4.ip_forward=1"},
}

// TestForward: status and explain say that a connection is refused if, and only if, packets are.
func TestForward(t *testing.T) {
	for _, fw := range firewalls {
		t.Run(fw.name, func(t *testing.T) {
			client := traceWorld(t)
			t.Setenv("XTABLES_LOCKFILE", t.TempDir()+"/lock")
			for _, step := range []struct {
				command string
				refused bool
			}{{"true", false}, {fw.load, true}, {fw.remedy, false}} {
				lab.Run(t, "", "sh", "-ec", step.command)
				connected := client.Do(func() error {
					conn, err := net.DialTimeout("tcp4", "10.96.0.80:80", 500*time.Millisecond)
					if err == nil {
						conn.Close()
					}
					return err
				}) == nil
				if connected == step.refused {
					t.Errorf("after %s: connected %v", step.command, connected)
				}
				if strings.Contains(step.command, "0x4000") {
					continue // status goes on to tell of connections that are not masqueraded
				}
				out, _ := lab.Execute(lab.Program(t), "status") // there is no daemon
				if text := strings.Join(strings.Fields(out.Stdout), " "); strings.Contains(text, fw.where) != step.refused {
					t.Errorf("after %s:\n%s", step.command, out.Stdout)
				}
				text := lab.Run(t, "", lab.Program(t), "explain", "192.168.0.9", "10.96.0.80:80/tcp")
				where, _, _ := strings.Cut(strings.TrimPrefix(fw.where, "sysctl "), ":")
				if strings.Contains(strings.Join(strings.Fields(text), " "), where) != step.refused {
					t.Errorf("after %s:\n%s", step.command, text)
				}
			}
		})
	}
}

// TestTraceVanished: trace says what has become of a packet that was translated and that nf_tables has not seen again.
func TestTraceVanished(t *testing.T) {
	for load, want := range map[string]string{
		"iptables-legacy -P FORWARD DROP": "translated, then not seen again: legacy iptables table filter, chain FORWARD: " +
			"its policy refuses it",
		"sysctl -qw net.ipv4.ip_forward=0": "translated, then not seen again: this node forwards no packet",
		"ip route add blackhole 10.244.0.0/28": "translated, then not seen again: dropped by legacy iptables, or by " +
			"the kernel",
		"iptables-nft -A FORWARD -p tcp -j REJECT": "rejected in table ip filter, chain FORWARD",
	} {
		t.Run(load, func(t *testing.T) {
			client := traceWorld(t)
			t.Setenv("XTABLES_LOCKFILE", t.TempDir()+"/lock")
			lab.Run(t, "", "sh", "-ec", load)
			packets := traced(t, func() {
				client.Do(func() error {
					if conn, err := net.DialTimeout("tcp4", "10.96.0.80:80", 300*time.Millisecond); err == nil {
						conn.Close()
					}
					return nil
				})
			}, "--source", "192.168.0.9", "--count", "1")
			if !strings.HasPrefix(packets[0].Outcome, want) {
				t.Errorf("%s, want %s", packets[0].Outcome, want)
			}
		})
	}
}

// TestMarkOfOthers: a packet that this node sends with a mark of another program's keeps its source port, although the
// mark has our bit: 51820 is wg-quick's.
func TestMarkOfOthers(t *testing.T) {
	const mark = 51820
	client := traceWorld(t)
	var received net.PacketConn
	if err := client.Do(func() (err error) {
		received, err = net.ListenPacket("udp4", "192.168.0.9:9000")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer received.Close()
	sender, err := net.ListenPacket("udp4", "192.168.0.2:51820")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	raw, err := sender.(*net.UDPConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
				t.Error(err)
			}
		})
	}
	if err == nil {
		_, err = sender.WriteTo([]byte("hello"), received.LocalAddr())
	}
	if err == nil {
		err = received.SetReadDeadline(time.Now().Add(lab.Patience))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, from, err := received.ReadFrom(make([]byte, 16)); err != nil || from.String() != "192.168.0.2:51820" {
		t.Errorf("from %v, %v", from, err)
	}
}

// TestWireGuard: what a tunnel of wg-quick sends keeps its source port, although wg-quick gives it the mark 51820, and
// clients reach Services through the tunnel.
func TestWireGuard(t *testing.T) {
	if _, err := lab.Execute("wg-quick", "--help"); err != nil {
		t.Skip(err)
	}
	client := traceWorld(t)
	if out, err := lab.Execute("ip", "link", "add", "probe", "type", "wireguard"); err != nil || out.Code != 0 {
		t.Skip("this kernel lacks WireGuard")
	}
	node, other := lab.Run(t, "", "wg", "genkey"), lab.Run(t, "", "wg", "genkey")
	config := func(device, key, rest, peer, allowed string) string {
		file := filepath.Join(t.TempDir(), device+".conf")
		text := fmt.Sprintf("[Interface]\nPrivateKey = %s%s\n[Peer]\nPublicKey = %sAllowedIPs = %s\n", key, rest,
			lab.Run(t, peer, "wg", "pubkey"), allowed)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	peer := config("wg1", other, "Address = 10.9.0.9/24\nListenPort = 51821", node, "10.9.0.0/24, 10.96.0.0/16")
	lab.Run(t, "", "wg-quick", "up", config("wg0", node, "Address = 10.9.0.1/24\nListenPort = 51820", other,
		"0.0.0.0/0\nEndpoint = 192.168.0.9:51821"))
	var listener net.Listener
	if err := client.Do(func() error {
		lab.Run(t, "", "wg-quick", "up", peer)
		var err error
		listener, err = net.Listen("tcp4", "10.9.0.9:80")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if mark := lab.Run(t, "", "wg", "show", "wg0", "fwmark"); mark != "0xca6c\n" {
		t.Errorf("the tunnel's mark is %s", mark)
	}
	conn, err := net.DialTimeout("tcp4", "10.9.0.9:80", lab.Patience)
	if err != nil {
		t.Fatalf("through the tunnel: %v", err)
	}
	conn.Close()
	if err := client.Do(func() error {
		out, err := lab.Execute("wg", "show", "wg1", "endpoints")
		if err == nil && !strings.HasSuffix(out.Stdout, "\t192.168.0.2:51820\n") {
			t.Errorf("the tunnel comes from %s", out.Stdout)
		}
		if err == nil {
			conn, err = net.DialTimeout("tcp4", "10.96.0.80:80", lab.Patience)
		}
		if err == nil {
			err = conn.Close()
		}
		return err
	}); err != nil {
		t.Errorf("a Service, through the tunnel: %v", err)
	}
}

// TestForwardIsWatched: the daemon notices rules that refuse connections to endpoints, and their end.
func TestForwardIsWatched(t *testing.T) {
	t.Parallel()
	traceWorld(t)
	p := lab.Start(t, append([]string{lab.Program(t), "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/64",
		"--takeover=never"}, examples...)...)
	p.AwaitLog(t, "kube-nft started: the kernel had all Services already")
	lab.Run(t, "", "sh", "-ec", firewalls[0].load)
	p.AwaitLog(t, "a firewall or kernel parameter refuses connections to endpoints on this node: "+firewalls[0].where)
	if _, body, err := fetch("127.0.0.1:10249", "/metrics"); err != nil ||
		!strings.Contains(body, "\nkube_nft_forward_refusals 1\n") {
		t.Errorf("%v: no kube_nft_forward_refusals 1", err)
	}
	lab.Run(t, "", "sh", "-ec", firewalls[0].remedy)
	p.AwaitLog(t, "a firewall or kernel parameter no longer refuses connections to endpoints")
	p.Stop(t)
}
