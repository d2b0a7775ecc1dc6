package maglev

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// request makes up a claim "group/order" of slots.
func request(b *Budget[string, string], table string, slots int) {
	group, _, _ := strings.Cut(table, "/")
	b.Request(table, group, table, slots)
}

// refusedBy settles and lists who goes without.
func refusedBy(b *Budget[string, string]) string {
	b.Settle(func(string, bool) {})
	var refused []string
	for table, c := range b.claims {
		if c.refused {
			refused = append(refused, table)
		}
	}
	slices.Sort(refused)
	return strings.Join(refused, " ")
}

func TestBudget(t *testing.T) {
	b := &Budget[string, string]{Order: strings.Compare, Slots: 100}
	for _, step := range []struct {
		table string
		slots int
		want  string
	}{
		{"loud/1", 50, ""},
		{"loud/2", 50, ""},
		{"loud/3", 50, "loud/3"},              // the first ones of a group have the advantage
		{"calm/1", 40, "loud/2 loud/3"},       // a group that asks for little takes from the one that asks for most
		{"calm/2", 10, "loud/2 loud/3"},       // which it gets as long as it asks for no more than the other
		{"loud/0", 5, "loud/2 loud/3 loud/1"}, // reckoned with 55 slots, where calm is with 50
		{"loud/0", 0, "loud/2 loud/3"},
		{"calm/1", 0, "loud/2 loud/3"}, // 60 of 100: loud/2 would be too much
		{"calm/2", 0, "loud/3"},
		{"loud/1", 0, ""},
		{"other/1", 101, "other/1"}, // more than there is: alone
		{"other/1", 0, ""},
	} {
		request(b, step.table, step.slots)
		want := strings.Fields(step.want)
		slices.Sort(want)
		if got := refusedBy(b); got != strings.Join(want, " ") {
			t.Errorf("%s asks for %d: %q refused, want %q", step.table, step.slots, got, want)
		}
	}
}

// TestBudgetFollowsClaims: two nodes that have heard of the same in another order refuse the same, no more than
// there is is given, and what is reported adds up.
func TestBudgetFollowsClaims(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	one, other := &Budget[string, string]{Order: strings.Compare, Slots: 1000}, &Budget[string, string]{Order: strings.Compare, Slots: 1000}
	reported := make(map[string]bool)
	for round := range 300 {
		want := make(map[string]int)
		for range 30 {
			want[fmt.Sprintf("ns%d/%d", random.IntN(4), random.IntN(9))] = random.IntN(120)
		}
		for group := range 4 {
			for i := range 9 {
				table := fmt.Sprintf("ns%d/%d", group, i)
				request(one, table, want[table])
				if want[table] == 0 {
					delete(reported, table)
				}
			}
		}
		for _, table := range slices.Backward(slices.Sorted(maps.Keys(other.claims))) {
			request(other, table, 0)
		}
		for table, slots := range want {
			request(other, table, slots)
			if random.IntN(9) == 0 {
				refusedBy(other)
			}
		}
		one.Settle(func(table string, refused bool) { reported[table] = refused })
		if a, b := refusedBy(one), refusedBy(other); a != b {
			t.Fatalf("round %d: one node refuses %q, the other %q", round, a, b)
		}
		given, refused := 0, 0
		for table, slots := range want {
			if one.Refuses(table) {
				refused++
			} else {
				given += slots
			}
			if reported[table] != one.Refuses(table) {
				t.Fatalf("round %d: %s refused %t, told %t", round, table, one.Refuses(table), reported[table])
			}
		}
		if given > 1000 || refused != one.refused {
			t.Fatalf("round %d: %d slots are given, %d tables refused, counted %d", round, given, refused, one.refused)
		}
	}
}

func BenchmarkBudget(b *testing.B) {
	budget := &Budget[string, string]{Order: strings.Compare, Slots: 500_000}
	for i := range 4000 {
		request(budget, fmt.Sprintf("ns%d/%06d", i%7, i), 503)
	}
	for i := 0; b.Loop(); i++ {
		request(budget, "ns0/000000", 503+i%2)
		budget.Settle(func(string, bool) {})
	}
}
