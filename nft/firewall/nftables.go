package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// inet is the family of tables for both IP families; see NFPROTO_INET in linux/netfilter.h.
const inet = nft.Family(unix.NFPROTO_INET)

// readAttempts is how often chains are listed again because another program commits.
const readAttempts = 8

// A table is a table of nf_tables. It reads its chains when a packet reaches them.
type table struct {
	kernel *kernel.Client
	family nft.Family
	name   string
	read   *int // rules of all tables so far
	known  map[string]rules
	keys   map[string]int    // lengths of the keys of sets
	found  map[string][]byte // elements by set and key
}

// userChains are chains of programs that are meant for rules of the administrator, or tell who writes the table.
var userChains = []string{dockerChain, ufwChain, ufwChain6}

const (
	dockerChain = "DOCKER-USER"
	ufwChain    = "ufw-user-forward"
	ufwChain6   = "ufw6-user-forward"
)

// A baseChain is a base chain as nf_tables lists it.
type baseChain struct {
	family      nft.Family
	table, name string
	typ         string
	hook        uint32
	priority    int32
	drops       bool
}

// listBases lists the base chains of other programs in the tables that are in force.
func listBases(ctx context.Context, k *kernel.Client) (list []baseChain, err error) {
	const dormant = 1 // NFT_TABLE_F_DORMANT
	for _, f := range []nft.Family{nft.IP, nft.IP6, inet} {
		passed := map[string]bool{nft.TableName: f != inet}
		err := k.Dump(ctx, unix.NFT_MSG_GETTABLE, f, func(*attr.Writer) {}, func(r attr.Reply) {
			name := attr.Name(attr.Find(r.Attributes(), unix.NFTA_TABLE_NAME))
			if attr.Uint32(attr.Find(r.Attributes(), unix.NFTA_TABLE_FLAGS))&dormant != 0 ||
				strings.HasPrefix(name, kernel.TracePrefix) {
				passed[name] = true
			}
		})
		if err != nil {
			return nil, err
		}
		err = k.Dump(ctx, unix.NFT_MSG_GETCHAIN, f, func(*attr.Writer) {}, func(r attr.Reply) {
			b := r.Attributes()
			hook, policy := attr.Find(b, unix.NFTA_CHAIN_HOOK), attr.Find(b, unix.NFTA_CHAIN_POLICY)
			if c := (baseChain{
				family: f, table: attr.Name(attr.Find(b, unix.NFTA_CHAIN_TABLE)),
				name: attr.Name(attr.Find(b, unix.NFTA_CHAIN_NAME)), typ: attr.Name(attr.Find(b, unix.NFTA_CHAIN_TYPE)),
				hook:     attr.Uint32(attr.Find(hook, unix.NFTA_HOOK_HOOKNUM)),
				priority: int32(attr.Uint32(attr.Find(hook, unix.NFTA_HOOK_PRIORITY))),
				drops:    policy != nil && attr.Uint32(policy) == verdictDrop,
			}); hook != nil && !passed[c.table] {
				list = append(list, c)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(a, b baseChain) int { return int(a.priority) - int(b.priority) })
	return list, nil
}

// request names the table in a request; attribute 1 of each kind is the table's name.
func (t *table) request(typ uint16, value string) func(*attr.Writer) {
	return func(w *attr.Writer) {
		w.Name(unix.NFTA_RULE_TABLE, t.name)
		w.Name(typ, value)
	}
}

// chain reads the rules of a chain.
func (t *table) chain(ctx context.Context, name string) (list rules, err error) {
	if list, ok := t.known[name]; ok {
		return list, nil
	}
	many := false
	err = t.kernel.Dump(ctx, unix.NFT_MSG_GETRULE, t.family, t.request(unix.NFTA_RULE_CHAIN, name), func(r attr.Reply) {
		b := r.Attributes()
		// Kernels that do not know the filter list all rules of the table.
		if attr.Name(attr.Find(b, unix.NFTA_RULE_CHAIN)) != name || attr.Name(attr.Find(b, unix.NFTA_RULE_TABLE)) != t.name {
			return
		}
		if *t.read++; *t.read > maxRules {
			many = true
			return
		}
		list = append(list, expressionRule{table: t, handle: attr.Uint64(attr.Find(b, unix.NFTA_RULE_HANDLE)),
			expressions: slices.Clone(attr.Find(b, unix.NFTA_RULE_EXPRESSIONS))})
	})
	switch {
	case many:
		return nil, ErrTooMany
	case errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT): // the caller looks whether the generation has changed
		err = nil
	case err != nil:
		return nil, fmt.Errorf("read table %s %s, chain %s: %w", t.family.NFT(), t.name, name, err)
	}
	t.known[name] = list
	return list, err
}

// Rejects reports whether a rule of nf_tables rejects packets. The kernel's tracing reports that as a drop.
func Rejects(ctx context.Context, k *kernel.Client, f nft.Family, tableName, chain string, handle uint64) bool {
	t := table{kernel: k, family: f, name: tableName, read: new(int), known: map[string]rules{}}
	list, err := t.chain(ctx, chain)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(r rule) bool {
		e := r.(expressionRule)
		rejects := false
		for x := attr.NewReader(e.expressions); x.Next() && e.handle == handle; {
			name := attr.Name(attr.Find(x.Value, unix.NFTA_EXPR_NAME))
			target := attr.Name(attr.Find(attr.Find(x.Value, unix.NFTA_EXPR_DATA), unix.NFTA_TARGET_NAME))
			rejects = rejects || name == "reject" || name == "target" && target == "REJECT"
		}
		return rejects
	})
}

// keyLen returns the length of a set's keys.
func (t *table) keyLen(ctx context.Context, set string) (n int, err error) {
	if n, ok := t.keys[set]; ok {
		return n, nil
	}
	err = t.kernel.Get(ctx, unix.NFT_MSG_GETSET, t.family, t.request(unix.NFTA_SET_NAME, set), func(r attr.Reply) {
		n = int(min(attr.Uint32(attr.Find(r.Attributes(), unix.NFTA_SET_KEY_LEN)), registerBytes))
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("read table %s %s, set %s: %w", t.family.NFT(), t.name, set, err)
	}
	t.keys[set] = n
	return n, nil
}

// element returns the element of a set that a key belongs to; nil if there is none.
func (t *table) element(ctx context.Context, set string, key []byte) (element []byte, err error) {
	at := set + "\x00" + string(key)
	if element, ok := t.found[at]; ok {
		return element, nil
	}
	err = t.kernel.Get(ctx, unix.NFT_MSG_GETSETELEM, t.family, func(w *attr.Writer) {
		w.Name(unix.NFTA_SET_ELEM_LIST_TABLE, t.name)
		w.Name(unix.NFTA_SET_ELEM_LIST_SET, set)
		list := w.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		item := w.Open(unix.NFTA_LIST_ELEM)
		value := w.Open(unix.NFTA_SET_ELEM_KEY)
		w.Bytes(unix.NFTA_DATA_VALUE, string(key))
		w.Close(value)
		w.Close(item)
		w.Close(list)
	}, func(r attr.Reply) {
		element = slices.Clone(attr.Find(attr.Find(r.Attributes(), unix.NFTA_SET_ELEM_LIST_ELEMENTS), unix.NFTA_LIST_ELEM))
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("look up an element of table %s %s, set %s: %w", t.family.NFT(), t.name, set, err)
	}
	t.found[at] = element
	return element, nil
}
