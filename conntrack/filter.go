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

	// Unanswered selects flows that were not translated and have seen no reply, Translated those
	// whose destination was translated. Silent and Answered select, of the translated ones, those that have seen no
	// reply, and those that have.
	Unanswered, Translated, Silent, Answered bool
}

// status returns which bits of a flow's status count, and what they have to be.
func (f *Filter) status() (mask, value Status) {
	if f.Unanswered || f.Silent || f.Answered {
		mask |= SeenReply
	}
	if f.Unanswered || f.Silent || f.Answered || f.Translated {
		mask |= DestinationNAT
	}
	if f.Answered {
		value |= SeenReply
	}
	if f.Silent || f.Answered || f.Translated {
		value |= DestinationNAT
	}
	return mask, value
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
		filters = append(filters, Filter{Family: family, Unanswered: true})
	}
	if streams {
		filters = append(filters, Filter{Family: family, Protocol: tracker.TCP, Translated: true},
			Filter{Family: family, Protocol: tracker.SCTP, Translated: true})
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
	mask, value := f.status()
	if f.Translated { // ip_vs does not set the bit
		mask, value = mask&^DestinationNAT, value&^DestinationNAT
	}
	return (f.Family == 0 || flow.Family == f.Family) &&
		(f.Protocol == 0 || flow.Original.Protocol == f.Protocol) &&
		flow.Status&mask == value && (!f.Translated || flow.Translated())
}

// encode returns the body of a dump request. Without a family the kernel refuses to compare protocols.
func (f *Filter) encode() []byte {
	var w attr.Writer
	w.Netfilter(f.Family, 0)
	if f.Family != 0 && f.Protocol != 0 {
		f.encodeProtocol(&w)
	}
	if mask, value := f.status(); mask != 0 {
		w.Uint32(ctaStatus, uint32(value))
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
