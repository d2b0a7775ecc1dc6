package conntrack

import (
	"encoding/binary"

	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Filter selects flows; every set field must hold.
type Filter struct {
	Family   tracker.Family   // 0: both, and nothing else is filtered in the kernel
	Protocol tracker.Protocol // 0: any

	// Bits of a flow's status. With DestinationNAT, Has selects translated flows; with SeenReply in Lacks, those of them
	// that nothing has answered.
	Has, Lacks Status
}

// staleFilters returns the filters that select flows of a family that may be stale: UDP flows, unanswered flows of any
// protocol, and translated connections of TCP and SCTP. The latter, usually most of all flows, leave the kernel only
// if some of them may have to end. A filter does not name addresses: each dump walks the whole table in the kernel,
// whatever it selects.
func staleFilters(family tracker.Family, udp, unanswered, streams bool) (filters []Filter) {
	if udp {
		filters = append(filters, Filter{Family: family, Protocol: tracker.UDP})
	}
	if unanswered {
		filters = append(filters, Filter{Family: family, Lacks: SeenReply | DestinationNAT})
	}
	if streams {
		filters = append(filters, Filter{Family: family, Protocol: tracker.TCP, Has: DestinationNAT},
			Filter{Family: family, Protocol: tracker.SCTP, Has: DestinationNAT})
	}
	return filters
}

// filters returns what must be read to find every flow that the changes made stale.
func (s *changeSet) filters() (filters []Filter) {
	for _, family := range tracker.Families {
		var udp, appeared, resets bool
		for _, change := range s.changes {
			switch {
			case change.Family() != family:
				continue
			case change.Protocol == tracker.UDP:
				udp = true
			case s.desired.Resets(change.Frontend):
				resets = resets || change.Reset || len(change.Removed) > 0
			}
			appeared = appeared || change.Appeared
		}
		filters = append(filters, staleFilters(family, udp, appeared, resets)...)
	}
	return filters
}

// Matches reports whether f selects flow.
func (f *Filter) Matches(flow *Flow) bool {
	return (f.Family == 0 || flow.Family == f.Family) &&
		(f.Protocol == 0 || flow.Original.Protocol == f.Protocol) &&
		flow.Status&(f.Has|f.Lacks) == f.Has
}

// encode returns the body of a dump request. Without a family the kernel refuses to compare protocols.
func (f *Filter) encode() []byte {
	var w attr.Writer
	w.Netfilter(f.Family, 0)
	if f.Family != 0 && f.Protocol != 0 {
		f.encodeProtocol(&w)
	}
	if mask := f.Has | f.Lacks; mask != 0 {
		w.Uint32(ctaStatus, uint32(f.Has))
		w.Uint32(ctaStatusMask, uint32(mask))
	}
	return w.Buf
}

// partProtocol is the bit of CTA_FILTER_ORIG_FLAGS by which only the protocol of a tuple counts. It is the
// kernel's own (net/netfilter/nf_internals.h) and in no public header.
const partProtocol = 1 << 3

func (f *Filter) encodeProtocol(w *attr.Writer) {
	filter := w.Open(ctaFilter)
	w.Head(ctaFilterOrigFlags, 4)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, partProtocol) // host byte order, here alone
	w.Close(filter)
	tuple := w.Open(ctaTupleOrig)
	w.Close(w.Open(ctaTupleIP))
	protocol := w.Open(ctaTupleProto)
	w.Uint8(ctaProtoNumber, uint8(f.Protocol))
	w.Close(protocol)
	w.Close(tuple)
}
