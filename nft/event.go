package nft

// A ForeignChange is what a commit that is not ours did to our tables.
type ForeignChange struct {
	Generation uint32
	// PID and Program name the thread that committed; zero if not known.
	PID     uint32
	Program string
	// Lost says that notifications were lost, or were too many to look at: nobody knows what has
	// changed.
	Lost   bool
	Events []Event
}

// An Event is what one notification says about an object of one of our tables. Op has the shape of
// the operation that somebody else did; its Verb is Add for a change too. For objects that are no
// table, chain, rule, set or element, Op holds the family alone.
type Event struct {
	Op
	// Listed holds the elements that came, changed or went, of a Set of which only the name is
	// known; nil if the event is about something else.
	Listed []ListedElement
}
