package inspect

import (
	"encoding/json"
	"testing"
)

// TestMergeTops: rows name their nodes, endpoints that many nodes find are there once, and no answer of a node ends the
// program.
func TestMergeTops(t *testing.T) {
	lists := make(map[string]*Top)
	for node, text := range map[string]string{
		"a": `{"active": 2, "services": [null, {"namespace": "shop", "name": "web", "active": 2}],
			"ejected": [{"namespace": "shop", "name": "web", "endpoint": "10.0.0.1:80"}]}`,
		"b": `{"active": 1, "services": [{"namespace": "shop", "name": "web", "active": 1}],
			"ejected": [{"namespace": "shop", "name": "web", "endpoint": "10.0.0.1:80"}, {"endpoint": "10.0.0.2:80"}]}`,
		"c": `{}`,
	} {
		lists[node] = new(Top)
		if err := json.Unmarshal([]byte(text), lists[node]); err != nil {
			t.Fatal(err)
		}
	}
	all := MergeTops(lists)
	if len(all.Services) != 2 || all.Services[0].Node != "a" || all.Services[1].Node != "b" || all.Active != 3 ||
		all.Nodes != 3 || len(all.Ejected) != 2 {
		t.Errorf("%+v", all)
	}
}
