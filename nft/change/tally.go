package change

// Work is how much of tables has changed. Before the first commit it is nothing.
type Work struct {
	Elements int // 1 for each element, chainWork for each chain
	// Walks are the verdicts and chains that are new or change. For them the kernel goes through all chains, and through
	// a map for each rule that looks something up there.
	Walks int
}

// chainWork is how many elements cost the kernel about as much as a chain with its rules.
const chainWork = 10

// A Tally says how much namespaces have changed.
type Tally struct {
	Namespaces map[string]Work
	All        Work
}

// NewTally returns an empty tally.
func NewTally() Tally { return Tally{Namespaces: make(map[string]Work)} }

// Add adds work to that of a namespace.
func (t *Tally) Add(namespace string, work Work) {
	if work == (Work{}) {
		return
	}
	of := t.Namespaces[namespace]
	t.Namespaces[namespace] = Work{of.Elements + work.Elements, of.Walks + work.Walks}
	t.All.Elements += work.Elements
	t.All.Walks += work.Walks
}

// MoveTo moves a part of the work to another tally: part of all.
func (t *Tally) MoveTo(other *Tally, part, all int) {
	for namespace, of := range t.Namespaces {
		moves := Work{of.Elements * part / all, of.Walks * part / all}
		other.Add(namespace, moves)
		t.Add(namespace, Work{-moves.Elements, -moves.Walks})
	}
}

// Count adds what a table's journal has noted since the given work.
func (t *Tally) Count(namespace string, j *Journal, since Work) {
	t.Add(namespace, Work{j.work.Elements - since.Elements, j.work.Walks - since.Walks})
}

// Clear makes the tally empty.
func (t *Tally) Clear() {
	clear(t.Namespaces)
	t.All = Work{}
}
