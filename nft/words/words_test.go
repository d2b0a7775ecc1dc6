package words

import "testing"

func TestPlural(t *testing.T) {
	for n, want := range []string{"0 rules", "1 rule", "2 rules"} {
		if got := Plural(n, "rule"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestSome(t *testing.T) {
	for _, tt := range []struct {
		list []int
		want string
	}{{nil, ""}, {[]int{1, 2}, "1, 2"}, {[]int{1, 2, 3, 4}, "1, 2, and 2 more"}} {
		if got := Some(tt.list, 2, ", "); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.list, got, tt.want)
		}
	}
}
