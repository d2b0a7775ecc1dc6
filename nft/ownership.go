package nft

// flags are those of the table as it is made.
func (t *Table) flags() uint32 {
	if t.Owned {
		return tableFlagOwner | tableFlagPersist
	}
	return 0
}

// SetOwned says whether the tables are to belong to the socket that commits them. A table
// that exists in the other way is replaced: the kernel does not change it in place.
func (r *Ruleset) SetOwned(owned bool) {
	for _, family := range r.families {
		family.table.Owned = owned
	}
}

// Adoption returns the operations by which the socket that commits them becomes the owner of
// tables whose owner has gone. They come first in a batch.
func Adoption(have, want Tables) (ops []Op) {
	for _, f := range Families {
		h, w := have[f], want[f]
		if h != nil && w != nil && !replaces(h, w) && w.Owned && h.Owner == 0 {
			ops = append(ops, Op{Verb: Add, Family: f, Table: w})
		}
	}
	return ops
}
