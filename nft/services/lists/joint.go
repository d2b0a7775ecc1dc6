package lists

import (
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Joint holds the endpoint lists of ports of a Service once: ports times endpoints become ports plus endpoints, and a
// port that comes to share the list of another one writes no endpoint. Its elements are the addresses of the endpoints,
// and a target for each port that connections go to.
type Joint struct {
	Number  uint32 // stands in the names of its chains
	id      tracker.PortID
	comment string
	like    *tracker.ServicePort // whose endpoints these are; nil if they were found in the kernel
	places  [2]Places            // cluster-wide and local
	chains  [2]sharedChain
	targets map[uint16]Target
}

// A Target is where connections to a port of a Service go.
type Target struct {
	Port    uint16 // of the endpoints
	Comment string // names the port of the Service
}

// NewJoint returns lists for ports of a Service, under a number that no other lists have. id is that of one of the
// ports. places have the order that the lists begin with: that of shown, a port which had lists of its own, or that of
// the kernel, if shown is nil.
func (w *Writer) NewJoint(number uint32, id tracker.PortID, shown *tracker.ServicePort, places [2]Places) *Joint {
	w.journal.PutSet(&nft.Set{Name: layout.AddressesMap(number), Rank: rank,
		Key: []nft.Field{nft.FieldIndex, nft.FieldIndex}, Data: []nft.Field{nft.FieldAddr}, Counters: w.settings.Counters})
	w.journal.PutSet(&nft.Set{Name: layout.PortsMap(number, id.Protocol), Rank: portsRank,
		Key: []nft.Field{nft.FieldIndex, nft.FieldPort}, Data: []nft.Field{nft.FieldPort}, Protocol: uint8(id.Protocol)})
	id.Port = ""
	return &Joint{Number: number, id: id, comment: layout.Comment(id), like: shown, places: places}
}

// Of returns the two lists as a port has them whose endpoints have the target port.
func (j *Joint) Of(target uint16) (cluster, local Places) {
	list := j.places
	for i := range list {
		list[i].target, list[i].joint = target, false
	}
	return list[0], list[1]
}

// SetJoint makes joint lists hold the endpoints of like, one of their ports.
func (w *Writer) SetJoint(j *Joint, like *tracker.ServicePort, by Method) {
	for i, have := range j.places {
		w.setPlaces(j, i, Arrange(have, j.like, like, i == 1, by))
	}
	j.like = like
}

// RemoveJoint removes joint lists that no port uses any more, and frees their number.
func (w *Writer) RemoveJoint(j *Joint) {
	for i := range j.chains {
		w.putChain(&j.chains[i], sharedChain{})
	}
	w.SetTargets(j, nil)
	w.journal.RemoveSet(layout.AddressesMap(j.Number))
	w.removeEmpty(layout.PortsMap(j.Number, j.id.Protocol))
	w.settings.Free(j.Number)
}

// setPlaces makes one of the lists have other places.
func (w *Writer) setPlaces(j *Joint, i int, want Places) {
	have := j.places[i]
	if !have.joint { // the list is new in the wanted table
		have = Places{}
	}
	want.target, want.joint = 0, true
	w.Write(layout.AddressesMap(j.Number), layout.ListKey(j.Number, i == 1, 0), j.comment, have, want)
	j.places[i] = want
	w.putChain(&j.chains[i], sharedChain{number: j.Number, local: i == 1, protocol: j.id.Protocol,
		capacity: want.Capacity(), joint: true})
}

// SetTargets makes the map of ports hold the target of each port that connections go to.
func (w *Writer) SetTargets(j *Joint, targets map[uint16]Target) {
	set := layout.PortsMap(j.Number, j.id.Protocol)
	for port := range j.targets {
		if _, stays := targets[port]; !stays {
			w.journal.Remove(set, layout.JointPortKey(j.Number, port))
		}
	}
	for port, target := range targets {
		if j.targets[port] != target {
			w.journal.Put(set, layout.JointPortKey(j.Number, port),
				nft.Element{Data: nft.PortData(target.Port), Comment: target.Comment})
		}
	}
	j.targets = targets
}
