package kernel

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

// whilePackets commits operations in a batch that takes so long that packets come in the middle of
// it, which update the entry of their source. Timers of the kernel send them, as SYNs that nobody has answered for
// a second: on a machine of one processor no program runs in the middle of a batch.
func whilePackets(t *testing.T, k *Client, ops ...nft.Op) {
	t.Helper()
	began := time.Now()
	var sockets []int
	hangUp := func() {
		for _, fd := range sockets {
			unix.Close(fd)
		}
		sockets = nil
	}
	defer hangUp()
	for range 300 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		sockets = append(sockets, fd)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{198, 51, 100, 1}}); err != unix.EINPROGRESS {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // and so far apart they are sent again
	}
	filler := &nft.Set{Name: "filler", Key: []nft.Field{nft.FieldAddr}}
	var elements []nft.KeyedElement
	for i := range 50_000 {
		elements = append(elements, nft.KeyedElement{Key: string([]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})})
	}
	ops = append(ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: filler}, nft.Op{Verb: nft.Add, Family: nft.IP, Set: filler, Elements: elements})
	time.Sleep(time.Until(began.Add(time.Second)))
	commit(t, k, nft.Batch{Ops: ops})
	hangUp()
	commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Delete, Family: nft.IP, Set: filler}}})
}

// TestTwinsInKernel changes the timeout of an entry while packets update it. A kernel that does not
// refresh elements then has two under one key: both are read as one, and deleting the key
// twice takes both away.
func TestTwinsInKernel(t *testing.T) {
	for name, refreshes := range map[string]bool{"refreshed": true, "replaced": false} {
		t.Run(name, func(t *testing.T) {
			lab.New(t)
			k := lab.Open(t, Open)
			if _, err := k.Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !k.refreshes && refreshes {
				t.Skip("this kernel does not refresh elements")
			}
			k.refreshes = refreshes
			if err := errors.Join(lab.AddSink("sink"), lab.AddAddress("sink", netip.MustParsePrefix("192.0.2.1/32")),
				lab.AddRoute("sink", netip.MustParsePrefix("198.51.100.0/24"), netip.Addr{})); err != nil {
				t.Fatal(err)
			}
			lab.Run(t, `table ip kube-nft {
	map affinity { type ipv4_addr : ipv4_addr; size 65535; flags dynamic,timeout; }
	chain output { type filter hook output priority 0; tcp dport 9 update @affinity { ip saddr timeout 1h : ip daddr }; }
}`, "nft", "-f", "-")
			set := &nft.Set{Name: "affinity", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr}, Dynamic: true, Size: 65535}
			const local, remote = "\xc0\x00\x02\x01", "\xc6\x33\x64\x01"
			entry := []nft.KeyedElement{{Key: local, Element: nft.Element{Data: remote, Life: &nft.Life{Timeout: 2 * time.Hour}}}}
			destroy := nft.Op{Verb: nft.Destroy, Family: nft.IP, Set: set, Elements: entry}
			read := func() *nft.Life {
				t.Helper()
				elements, err := k.Elements(t.Context(), nft.IP, set)
				if err != nil || len(elements) > 1 {
					t.Fatalf("%v, %v", elements, err)
				}
				return elements[local].Life
			}
			whilePackets(t, k)
			if life := read(); life == nil || life.Timeout != time.Hour || life.Twin {
				t.Fatalf("packets made %+v", life)
			}
			const tries = 20 // a busy machine may commit when all were sent again
			var life *nft.Life
			for n := 0; n == 0 || !refreshes && n < tries && (life == nil || !life.Twin); n++ {
				whilePackets(t, k, destroy, nft.Op{Verb: nft.Add, Family: nft.IP, Set: set, Elements: entry})
				life = read()
			}
			if refreshes {
				if life == nil || life.Timeout != 2*time.Hour || life.Twin {
					t.Errorf("the entry is %+v, want one of 2h", life)
				}
				return
			}
			if life == nil || !life.Twin {
				t.Skip("this kernel makes no twins")
			}
			commit(t, k, nft.Batch{Ops: []nft.Op{destroy}})
			if life := read(); life == nil || life.Twin {
				t.Errorf("after one of two was deleted there is %+v", life)
			}
			commit(t, k, nft.Batch{Ops: []nft.Op{destroy}})
			if life := read(); life != nil {
				t.Errorf("after both were deleted there is %+v", life)
			}
		})
	}
}
