package legacy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// svc is a chain name of the form that kube-proxy gives to Services.
const svc = "KUBE-SVC-TCOU7JCQXEZGVUNU"

func TestRemoval(t *testing.T) {
	for _, tt := range []struct {
		name   string
		chains []chain
		want   removal
	}{
		{"nothing", []chain{{name: "INPUT", base: true, rules: []rule{{}}}}, removal{foreign: 1}},
		{"a jump and its chains", []chain{
			{name: "OUTPUT", base: true, rules: []rule{{}, {target: "KUBE-SERVICES", plain: true, comment: "portals"}}},
			{name: "KUBE-SERVICES", rules: []rule{{target: svc}}},
			{name: svc, rules: []rule{{}, {}}},
		}, removal{
			actions: map[string]chainAction{"KUBE-SERVICES": deleteChain, svc: deleteChain},
			jumps:   []Jump{{Chain: "OUTPUT", Rule: 2, Target: "KUBE-SERVICES", Comment: "portals"}}, foreign: 1, rules: 3,
		}},
		{"a jump with a condition", []chain{
			{name: "OUTPUT", base: true, rules: []rule{{target: "KUBE-SERVICES"}}},
			{name: "KUBE-SERVICES", rules: []rule{{}}},
		}, removal{
			actions: map[string]chainAction{"KUBE-SERVICES": emptyChain},
			blocked: []Jump{{Chain: "OUTPUT", Rule: 1, Target: "KUBE-SERVICES"}}, foreign: 1, rules: 1,
		}},
		{"a plain jump past the entrances", []chain{
			{name: "OUTPUT", base: true, rules: []rule{{target: svc, plain: true}}}, {name: svc},
		}, removal{
			actions: map[string]chainAction{svc: emptyChain},
			blocked: []Jump{{Chain: "OUTPUT", Rule: 1, Target: svc}}, foreign: 1,
		}},
		{"the kubelet borrows the mark", []chain{
			{name: "KUBE-HP-A", rules: []rule{{target: "KUBE-MARK-MASQ", plain: true}}},
			{name: "KUBE-MARK-MASQ", rules: []rule{{}}},
		}, removal{
			actions: map[string]chainAction{"KUBE-MARK-MASQ": keepChain},
			blocked: []Jump{{Chain: "KUBE-HP-A", Rule: 1, Target: "KUBE-MARK-MASQ"}}, foreign: 1,
		}},
		{"a mark that is more", []chain{
			{name: "CNI", rules: []rule{{target: "KUBE-MARK-MASQ"}}},
			{name: "KUBE-MARK-MASQ", rules: []rule{{target: svc}}}, {name: svc},
		}, removal{
			actions: map[string]chainAction{"KUBE-MARK-MASQ": emptyChain, svc: deleteChain},
			blocked: []Jump{{Chain: "CNI", Rule: 1, Target: "KUBE-MARK-MASQ"}}, foreign: 1, rules: 1,
		}},
		{"a verdict map", []chain{{name: svc, elsewhere: true, rules: []rule{{}}}}, removal{
			actions: map[string]chainAction{svc: emptyChain}, blocked: []Jump{{Target: svc}}, rules: 1,
		}},
		{"a base chain of the name", []chain{{name: "KUBE-SERVICES", base: true, rules: []rule{{}}}}, removal{foreign: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want.actions == nil {
				tt.want.actions = map[string]chainAction{}
			}
			got := newRemoval(ruleset{table: "nat", chains: tt.chains})
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(removal{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestJumpString(t *testing.T) {
	for want, j := range map[string]Jump{
		`OUTPUT rule 2 to KUBE-SERVICES ("portals")`: {"OUTPUT", 2, "KUBE-SERVICES", "portals"},
		`CNI rule 1 to KUBE-MARK-MASQ`:               {"CNI", 1, "KUBE-MARK-MASQ", ""},
		`an element of a verdict map, to ` + svc:     {Target: svc},
	} {
		if got := j.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
