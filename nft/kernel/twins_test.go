package kernel

import (
	"net"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

// whilePackets commits operations in a batch that takes so long that packets come in the middle of
// it, which update the entry of their source.
func whilePackets(t *testing.T, k *Client, ops ...nft.Op) {
	t.Helper()
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begun, stop, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			_, _ = conn.Write(nil) // refused: nobody listens
			if n == 0 {
				close(begun)
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	filler := &nft.Set{Name: "filler", Key: []nft.Field{nft.FieldAddr}}
	var elements []nft.KeyedElement
	for i := range 50_000 {
		elements = append(elements, nft.KeyedElement{Key: string([]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})})
	}
	<-begun
	ops = append(ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: filler}, nft.Op{Verb: nft.Add, Family: nft.IP, Set: filler, Elements: elements})
	commit(t, k, nft.Batch{Ops: ops})
	close(stop)
	<-stopped
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
			lab.Run(t, `table ip kube-nft {
	map affinity { type ipv4_addr : ipv4_addr; size 65535; flags dynamic,timeout; }
	chain output { type filter hook output priority 0; udp dport 9 update @affinity { ip saddr timeout 1h : ip daddr }; }
}`, "nft", "-f", "-")
			set := &nft.Set{Name: "affinity", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr}, Dynamic: true, Size: 65535}
			const local = "\x7f\x00\x00\x01"
			entry := []nft.KeyedElement{{Key: local, Element: nft.Element{Data: local, Life: &nft.Life{Timeout: 2 * time.Hour}}}}
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
			const tries = 20 // on a busy machine, or one of a single processor, packets may come before a commit and after it
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
