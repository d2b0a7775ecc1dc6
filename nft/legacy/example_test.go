package legacy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kube-nft/kube-nft/nft/legacy"
)

// An inventory is what kube-proxy left on a node. To take one changes nothing; a part that needs
// a privilege says so.
func ExampleNode_Inventory() {
	proc, err := os.MkdirTemp("", "proc") // a node without processes; leave Proc empty for this one
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(proc)
	if err := os.Symlink("/proc/net", filepath.Join(proc, "net")); err != nil {
		fmt.Println(err)
		return
	}
	inventory, _ := legacy.Node{Proc: proc}.Inventory(context.Background())
	for _, part := range inventory.Parts {
		if part.Needs == "" && !part.Clean() {
			fmt.Printf("%s %s %s: %d chains, %d rules\n", part.Backend, part.Family, part.Table, len(part.Chains), part.Rules)
		}
	}
	fmt.Println(len(inventory.Processes), "processes of kube-proxy")
	// Output: 0 processes of kube-proxy
}
