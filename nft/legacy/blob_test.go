package legacy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
)

// A blobWriter builds the bytes of a table as libiptc would.
type blobWriter struct {
	layout *layout
	data   []byte
	hooks  hookTable
}

// rule appends a rule with the given matches, each a name and its data, and target.
func (w *blobWriter) rule(matches []Extension, target string, data []byte) {
	start := len(w.data)
	w.data = append(w.data, make([]byte, w.layout.header)...)
	for _, m := range matches {
		w.extension(m.Name, m.Data)
	}
	at := len(w.data)
	w.extension(target, data)
	put := binary.NativeEndian
	put.PutUint16(w.data[start+w.layout.target:], uint16(at-start))
	put.PutUint16(w.data[start+w.layout.target+2:], uint16(len(w.data)-start))
	put.PutUint64(w.data[start+w.layout.counters:], uint64(w.hooks.entries)*3+1)
	w.hooks.entries++
}

// extension appends a match or target, padded.
func (w *blobWriter) extension(name string, data []byte) {
	size := (extensionHeader + len(data) + entryBlock - 1) / entryBlock * entryBlock
	extension := make([]byte, size)
	binary.NativeEndian.PutUint16(extension, uint16(size))
	copy(extension[2:], name)
	copy(extension[extensionHeader:], data)
	w.data = append(w.data, extension...)
}

// verdict appends a rule with a standard verdict or the offset of a jump.
func (w *blobWriter) verdict(v int, matches ...Extension) {
	w.rule(matches, "", binary.NativeEndian.AppendUint32(nil, uint32(int32(v))))
}

// chain appends the head of a user chain.
func (w *blobWriter) chain(name string) {
	w.rule(nil, "ERROR", append([]byte(name), make([]byte, errorName-len(name))...))
}

// Verdicts as x_tables encodes them.
const (
	accept       = -2
	returns      = -5
	verdictEntry = standardTarget // of a rule without matches, beyond its header
)

// sampleBlob is a nat table with PREROUTING (a jump to KUBE-SERVICES, a rule without
// target), POSTROUTING, KUBE-SERVICES (which goes to ADMIN) and ADMIN.
func sampleBlob(l *layout) *blobWriter {
	w := &blobWriter{layout: l}
	plain := l.header + verdictEntry
	head := l.header + 64
	comment := Extension{Name: "comment", Data: append([]byte("kubernetes service portals"), make([]byte, 230)...)}
	services := plain + extensionHeader + len(comment.Data) + 3*plain + head
	w.hooks.valid = 1<<0 | 1<<4
	w.verdict(services, comment)
	w.verdict(len(w.data) + plain)
	w.hooks.underflow[0] = uint32(len(w.data))
	w.verdict(accept)
	w.hooks.entry[4], w.hooks.underflow[4] = uint32(len(w.data)), uint32(len(w.data))
	w.verdict(accept)
	w.chain("KUBE-SERVICES")
	w.verdict(services + 2*plain + head)
	w.verdict(returns)
	w.chain("ADMIN")
	w.rule([]Extension{{Name: "limit", Data: make([]byte, 40)}}, "MARK", make([]byte, 8))
	w.verdict(returns)
	w.chain("ERROR")
	return w
}

// decodeSample decodes the sample or fails the test.
func decodeSample(t *testing.T, f nft.Family) *blob {
	t.Helper()
	w := sampleBlob(layoutOf(f))
	b, err := decodeBlob(w.layout, w.hooks, w.data)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBlobRuleset(t *testing.T) {
	want := ruleset{table: "nat", chains: []chain{
		{name: "PREROUTING", base: true, rules: []rule{
			{target: "KUBE-SERVICES", comment: "kubernetes service portals", plain: true}, {plain: true}}},
		{name: "POSTROUTING", base: true},
		{name: "KUBE-SERVICES", rules: []rule{{target: "ADMIN", plain: true}}},
		{name: "ADMIN", rules: []rule{{}}},
	}}
	for _, f := range nft.Families {
		b := decodeSample(t, f)
		private := cmp.AllowUnexported(ruleset{}, chain{}, rule{})
		if diff := cmp.Diff(want, b.ruleset("nat"), compareAddr, private); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f, diff)
		}
	}
}

func TestBlobWithout(t *testing.T) {
	for _, f := range nft.Families {
		b := decodeSample(t, f)
		rest := b.without(newRemoval(b.ruleset("nat")))
		hooks, data, err := rest.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeBlob(b.layout, hooks, data)
		if err != nil {
			t.Fatal(err)
		}
		want := ruleset{table: "nat", chains: []chain{
			{name: "PREROUTING", base: true, rules: []rule{{plain: true}}},
			{name: "POSTROUTING", base: true},
			{name: "ADMIN", rules: []rule{{}}},
		}}
		private := cmp.AllowUnexported(ruleset{}, chain{}, rule{})
		if diff := cmp.Diff(want, again.ruleset("nat"), compareAddr, private); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f, diff)
		}
		if diff := cmp.Diff([]int{1, 2, 3, 7, 8, 9, 10}, rest.order()); diff != "" {
			t.Errorf("%s: old numbers (-want +got):\n%s", f, diff)
		}
	}
}

// TestBlobDangling checks that a jump to a chain that is not there is never written.
func TestBlobDangling(t *testing.T) {
	b := decodeSample(t, nft.IP)
	b.chains = b.chains[:3]
	want := `chain "KUBE-SERVICES": a rule jumps to "ADMIN", which is gone`
	if _, _, err := b.encode(); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestBlobRefused spoils the sample in ways that the kernel would not accept either.
func TestBlobRefused(t *testing.T) {
	l := layoutOf(nft.IP)
	put := binary.NativeEndian
	for _, tt := range []struct {
		name  string
		spoil func(w *blobWriter)
		want  string
	}{
		{"empty", func(w *blobWriter) { w.data = nil }, "no rules, not even a policy"},
		{"cut", func(w *blobWriter) { w.data = w.data[:100] }, "at byte 0: 100 bytes are too few for a rule"},
		{"odd length", func(w *blobWriter) { put.PutUint16(w.data[l.target+2:], 441) },
			"at byte 0: a rule of 441 bytes with its target at 400"},
		{"target before matches", func(w *blobWriter) { put.PutUint16(w.data[l.target:], 8) },
			"at byte 0: a rule of 440 bytes with its target at 8"},
		{"long target", func(w *blobWriter) { put.PutUint16(w.data[400:], 48) }, "at byte 0: a target of 48 bytes"},
		{"long match", func(w *blobWriter) { put.PutUint16(w.data[l.header:], 296) }, "at byte 0: a match of 296 bytes"},
		{"short match", func(w *blobWriter) { put.PutUint16(w.data[l.header:], 264) },
			"at byte 0: a match cut off after 24 bytes"},
		{"number", func(w *blobWriter) { w.hooks.entries++ }, "11 rules instead of 12"},
		{"no end", func(w *blobWriter) { w.data = w.data[:len(w.data)-l.header-64]; w.hooks.entries-- },
			"the closing rule is missing"},
		{"twice", func(w *blobWriter) { w.hooks.entry[4] = 0 }, "two base chains begin at byte 0"},
		{"nowhere", func(w *blobWriter) { w.hooks.entry[0] = 8 }, "the rule at byte 0 is in no chain"},
		{"policy", func(w *blobWriter) { w.hooks.underflow[0] = 0 }, "the policy of PREROUTING is not at its end"},
		{"hook", func(w *blobWriter) { w.hooks.valid |= 2; w.hooks.entry[1] = 4 },
			"base chains at hooks 0x11 instead of 0x13"},
		{"same name", func(w *blobWriter) { copy(w.data[bytes.Index(w.data, []byte("ADMIN")):], "KUBE-SERVICES") },
			`two chains are named "KUBE-SERVICES"`},
		{"into a chain", func(w *blobWriter) { put.PutUint32(w.data[432:], 592) },
			`chain "PREROUTING" rule 1: a jump to byte 592, where no chain begins`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := sampleBlob(l)
			tt.spoil(w)
			if _, err := decodeBlob(l, w.hooks, w.data); err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

// FuzzBlob holds the codec to its laws whatever the bytes: no panic, decoding then encoding
// is the identity, and a removal leaves a table that decodes and needs no second one.
func FuzzBlob(f *testing.F) {
	for _, family := range nft.Families {
		w := sampleBlob(layoutOf(family))
		f.Add(family == nft.IP6, w.hooks.valid, w.hooks.entry[4], w.hooks.underflow[0], w.hooks.underflow[4], w.hooks.entries,
			w.data)
	}
	f.Fuzz(func(t *testing.T, v6 bool, valid, entry4, underflow0, underflow4, entries uint32, data []byte) {
		l := &layoutIP
		if v6 {
			l = &layoutIP6
		}
		hooks := hookTable{valid: valid, entries: entries}
		hooks.entry[4], hooks.underflow[0], hooks.underflow[4] = entry4, underflow0, underflow4
		b, err := decodeBlob(l, hooks, data)
		if err != nil {
			return
		}
		if err := checkLaws(l, hooks, data, b); err != nil {
			t.Error(err)
		}
	})
}

// checkLaws checks what FuzzBlob promises of a blob that was decoded.
func checkLaws(l *layout, hooks hookTable, data []byte, b *blob) error {
	gotHooks, got, err := b.encode()
	if err != nil || !bytes.Equal(got, data) || normal(gotHooks) != normal(hooks) {
		return fmt.Errorf("another table after decoding and encoding (%v)", err)
	}
	restHooks, rest, err := b.without(newRemoval(b.ruleset("nat"))).encode()
	if err != nil {
		return fmt.Errorf("after the removal: %w", err)
	}
	again, err := decodeBlob(l, restHooks, rest)
	if err != nil {
		return fmt.Errorf("decode what the removal left: %w", err)
	}
	if r := newRemoval(again.ruleset("nat")); !r.empty() {
		return fmt.Errorf("a second removal finds %v", r.actions)
	}
	return nil
}
