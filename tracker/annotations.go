package tracker

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// AnnotationPrefix begins the keys of the annotations that are ours.
const AnnotationPrefix = "kube-nft.io/"

// Settings are what a Service asks for by annotations. Where it asks for nothing, they are what
// Config.Defaults says. The zero value is a Service without annotations on a node without such
// flags. Settings can be compared with ==.
type Settings struct {
	// KeepUnreadyUDP lets UDP flows to an endpoint go on as long as the endpoint is part of the
	// Service, serving or not.
	KeepUnreadyUDP bool
	// ResetDeparted ends connections of TCP and SCTP to endpoints that are no part of the Service any
	// more, or neither serving nor terminating.
	ResetDeparted bool
	// Eject leaves out endpoints that do not answer, for a while, see Tracker.LeaveOut.
	Eject bool
	// LocalFallback lets a traffic policy Local use the cluster-wide list while there is no endpoint on
	// this node.
	LocalFallback bool
	// SourceRangesForNodePorts applies the source ranges of the Service to its node ports.
	SourceRangesForNodePorts bool
	// Ping lets the addresses of the Service answer echo requests while it has endpoints.
	Ping bool
	// Router makes the ipMode of the Service's load-balancer IPs Router where the API says VIP, see
	// ServicePort.Routers.
	Router bool
	// Maglev lets the hash of a client choose its endpoint, by the same slot table on every node, instead
	// of chance. HashAddress makes that the hash of the client's address, without its port.
	Maglev, HashAddress bool
}

// SliceSettings are what an EndpointSlice asks for by annotations. They can be compared with ==.
type SliceSettings struct {
	// Weight is the part that each endpoint of the slice gets of new connections, in proportion to the
	// weights of the others. With 0 an endpoint gets no new connections and keeps those that it has.
	Weight uint16
}

// defaultSliceSettings are the settings of slices without annotations.
var defaultSliceSettings = SliceSettings{Weight: 1}

// An Annotation is one that kube-nft knows, as the documentation shows it.
type Annotation struct {
	Kind    string // of the objects that can have it: Service or EndpointSlice
	Key     string // with AnnotationPrefix
	Values  string // the allowed values, as in "keep or cut"
	Default string // the value without the annotation
	Meaning string
	Stage   string // stable, or alpha: it may change or go with any minor version
}

// Annotations returns all annotations that kube-nft knows: of Services, then of EndpointSlices, each in
// alphabetical order.
func Annotations() []Annotation {
	return append(documented(kindService, serviceAnnotations), documented(kindSlice, sliceAnnotations)...)
}

// The kinds of the objects that can have annotations of ours.
const (
	kindService = "Service"
	kindSlice   = "EndpointSlice"
)

// An annotation is one that objects of a kind can have. Its value is one of words or, without words,
// a whole number from 0 to most.
type annotation[T any] struct {
	name    string // after AnnotationPrefix
	words   []string
	most    int
	without string // the value without the annotation, for the documentation
	meaning string // for the documentation, one sentence
	alpha   bool
	// set stores a value: the index of the word, or the number.
	set func(settings *T, value int)
	// shown is for an annotation that changes no chain or list from which commands could tell it.
	shown *Option
}

// An Option is an annotation of a Service that the comment of its elements shows, so that get, explain and status know
// of it.
type Option struct {
	Word       string // in the comment
	Annotation string // as "key: value"
	// InForce reports whether the annotation, or the default of the node, has an effect on a Service port.
	InForce func(p *ServicePort) bool
}

// Options returns all of them, in the order in which comments have their words.
func Options() (list []Option) {
	for i := range serviceAnnotations {
		if shown := serviceAnnotations[i].shown; shown != nil {
			list = append(list, Option{shown.Word, AnnotationPrefix + shown.Annotation, shown.InForce})
		}
	}
	return list
}

var yesNo = []string{"false", "true"}

// serviceAnnotations are the annotations of Services, in alphabetical order.
var serviceAnnotations = []annotation[Settings]{
	{
		name: "connections-of-departed", words: []string{"keep", "reset"},
		without: "keep, or the value of `--connections-of-departed`",
		meaning: "what happens to TCP and SCTP connections to an endpoint that was removed, or that neither serves nor " +
			"terminates",
		set: func(s *Settings, value int) { s.ResetDeparted = value == 1 },
		shown: &Option{"reset-departed", "connections-of-departed: reset", func(p *ServicePort) bool {
			return p.Settings.ResetDeparted && p.ID.Protocol != UDP
		}},
	},
	{
		name: "eject", words: yesNo, alpha: true, without: "false, or the value of `--eject-endpoints`",
		meaning: "whether an endpoint that does not answer TCP connections gets no new ones for a while",
		set:     func(s *Settings, value int) { s.Eject = value == 1 },
		shown: &Option{"eject", "eject: true", func(p *ServicePort) bool {
			return p.Settings.Eject && p.ID.Protocol == TCP
		}},
	},
	{
		name: "hash", words: []string{"source-ip-port", "source-ip"}, without: "source-ip-port",
		meaning: "the input of the hash with `lb-algorithm: maglev`: the client's address and port, or only its address",
		set:     func(s *Settings, value int) { s.HashAddress = value == 1 },
	},
	{
		name: "ip-mode", words: []string{"Router", "VIP"}, without: "VIP",
		meaning: "what happens to packets for a load-balancer IP of ipMode VIP without a usable endpoint: " +
			"Router forwards them, VIP rejects or drops them",
		set: func(s *Settings, value int) { s.Router = value == 0 },
	},
	{
		name: "lb-algorithm", words: []string{"random", "maglev"}, without: "random",
		meaning: "how kube-nft chooses the endpoint of a new connection: at random, or by a hash of the client, the same " +
			"on all nodes",
		set: func(s *Settings, value int) { s.Maglev = value == 1 },
	},
	{
		name: "local-fallback", words: []string{"none", "cluster"}, without: "none",
		meaning: "which endpoints a traffic policy Local uses on a node without endpoints",
		set:     func(s *Settings, value int) { s.LocalFallback = value == 1 },
		shown: &Option{"local-fallback", "local-fallback: cluster", func(p *ServicePort) bool {
			return p.Settings.LocalFallback && (p.InternalLocal || p.ExternalLocal)
		}},
	},
	{
		name: "ping", words: yesNo, without: "false, or the value of `--ping-vips`",
		meaning: "whether the addresses of the Service respond to ping while it has endpoints",
		set:     func(s *Settings, value int) { s.Ping = value == 1 },
		shown:   &Option{"ping", "ping: true", func(p *ServicePort) bool { return p.Settings.Ping }},
	},
	{
		name: "source-ranges-for-node-ports", words: yesNo,
		without: "false, or the value of `--source-ranges-for-node-ports`",
		meaning: "whether `spec.loadBalancerSourceRanges` apply to the node ports, too",
		set:     func(s *Settings, value int) { s.SourceRangesForNodePorts = value == 1 },
		shown: &Option{"node-port-ranges", "source-ranges-for-node-ports: true", func(p *ServicePort) bool {
			return p.RangesForNodePort
		}},
	},
	{
		name: "udp-unready", words: []string{"cut", "keep"}, without: "cut",
		meaning: "what happens to UDP flows of an endpoint that stops serving but stays in the Service",
		set:     func(s *Settings, value int) { s.KeepUnreadyUDP = value == 1 },
		shown: &Option{"keep-unready", "udp-unready: keep", func(p *ServicePort) bool {
			return p.Settings.KeepUnreadyUDP && p.ID.Protocol == UDP
		}},
	},
}

// sliceAnnotations are the annotations of EndpointSlices, in alphabetical order.
var sliceAnnotations = []annotation[SliceSettings]{
	{
		name: "weight", most: math.MaxUint16, without: "1",
		meaning: "the share of new connections of each endpoint of the slice; 0: no new connections, and it keeps its " +
			"existing ones",
		set: func(s *SliceSettings, value int) { s.Weight = uint16(value) },
	},
}

// IsAnnotation reports whether key is an annotation of ours, or looks as if it were meant to be one.
// The API lets the prefix have capital letters.
func IsAnnotation(key string) bool {
	return len(key) >= len(AnnotationPrefix) && strings.EqualFold(key[:len(AnnotationPrefix)], AnnotationPrefix)
}

// readAnnotations stores in settings what the annotations of an object ask for. It refuses unknown
// annotations of ours and unknown values, which count as if they were absent: what they were before is not known
// after a restart, and all nodes have to agree.
func readAnnotations[T any](table []annotation[T], of map[string]string, settings *T, r *invalidFields) {
	if len(of) == 0 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if !IsAnnotation(key) {
			continue
		}
		field, value := "metadata.annotations["+printable(key)+"]", of[key]
		name := strings.TrimPrefix(key, AnnotationPrefix)
		i := slices.IndexFunc(table, func(a annotation[T]) bool { return a.name == name })
		if i < 0 {
			r.add(field, "%s", unknownAnnotation{r.kind, key})
			continue
		}
		if number, ok := table[i].parse(value); ok {
			table[i].set(settings, number)
		} else {
			r.add(field, "%s is not %s; the annotation is ignored", quote(value), table[i].values())
		}
	}
}

// An unknownAnnotation is a key that objects of a kind cannot have. An object may have 15,000 of them, so that String
// makes the text of those that are reported alone.
type unknownAnnotation struct{ kind, key string }

// String returns the reason.
func (u unknownAnnotation) String() string {
	var known []string
	for _, a := range Annotations() {
		switch {
		case a.Kind == u.kind:
			known = append(known, a.Key)
		case a.Key == u.key:
			return "belongs to objects of kind " + a.Kind + "; it is ignored"
		}
	}
	if len(known) == 0 {
		return "is not known; objects of kind " + u.kind + " have no annotations of kube-nft"
	}
	return "is not known; objects of kind " + u.kind + " can have " + Enumerate(known)
}

// parse returns the index of a word, or a number. Numbers have one spelling.
func (a *annotation[T]) parse(value string) (number int, ok bool) {
	if a.words != nil {
		number = slices.Index(a.words, value)
		return number, number >= 0
	}
	number, err := strconv.Atoi(value)
	return number, err == nil && number >= 0 && number <= a.most && strconv.Itoa(number) == value
}

// values says which values are allowed.
func (a *annotation[T]) values() string {
	if a.words == nil {
		return "a whole number from 0 to " + strconv.Itoa(a.most)
	}
	return Enumerate(a.words)
}

// Enumerate writes words as "a, b or c".
func Enumerate(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func documented[T any](kind string, table []annotation[T]) []Annotation {
	all := make([]Annotation, len(table))
	for i := range table {
		a := &table[i]
		all[i] = Annotation{Kind: kind, Key: AnnotationPrefix + a.name, Values: a.values(), Default: a.without,
			Meaning: a.meaning, Stage: "stable"}
		if a.alpha {
			all[i].Stage = "alpha"
		}
	}
	return all
}
