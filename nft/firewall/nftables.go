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

// listBases lists the base chains of other programs in the tables that are in force.
func (f *Firewall) listBases(ctx context.Context) (list []base, err error) {
	const dormant = 1 // NFT_TABLE_F_DORMANT
	tables := make(map[string]*table)
	for _, family := range []nft.Family{nft.IP, nft.IP6, inet} {
		passed := map[string]bool{nft.TableName: family != inet}
		err := f.kernel.Dump(ctx, unix.NFT_MSG_GETTABLE, family, kernel.About(), func(r attr.Reply) {
			name := attr.Name(attr.Find(r.Attributes(), unix.NFTA_TABLE_NAME))
			if attr.Uint32(attr.Find(r.Attributes(), unix.NFTA_TABLE_FLAGS))&dormant != 0 ||
				strings.HasPrefix(name, kernel.TracePrefix) {
				passed[name] = true
			}
		})
		if err != nil {
			return nil, err
		}
		err = f.kernel.Dump(ctx, unix.NFT_MSG_GETCHAIN, family, kernel.About(), func(r attr.Reply) {
			b := r.Attributes()
			name, hook := attr.Name(attr.Find(b, unix.NFTA_CHAIN_TABLE)), attr.Find(b, unix.NFTA_CHAIN_HOOK)
			if hook == nil || passed[name] {
				return
			}
			policy, chain := attr.Find(b, unix.NFTA_CHAIN_POLICY), attr.Name(attr.Find(b, unix.NFTA_CHAIN_NAME))
			title := family.NFT() + " " + name
			if tables[title] == nil {
				tables[title] = &table{kernel: f.kernel, family: family, name: name, read: &f.read,
					known: map[string]rules{}, keys: map[string]int{}, found: map[string][]byte{}}
			}
			list = append(list, base{
				where: fmt.Sprintf("table %s, chain %s", nft.Visible(title), nft.Visible(chain)), table: name, family: family,
				name: chain, typ: attr.Name(attr.Find(b, unix.NFTA_CHAIN_TYPE)),
				hook:     attr.Uint32(attr.Find(hook, unix.NFTA_HOOK_HOOKNUM)),
				priority: int32(attr.Uint32(attr.Find(hook, unix.NFTA_HOOK_PRIORITY))),
				drops:    policy != nil && attr.Uint32(policy) == verdictDrop, chains: tables[title],
			})
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(a, b base) int { return int(a.priority) - int(b.priority) })
	return list, nil
}

// chain reads the rules of a chain.
func (t *table) chain(ctx context.Context, name string) (list rules, err error) {
	if list, ok := t.known[name]; ok {
		return list, nil
	}
	many := false
	err = t.kernel.Dump(ctx, unix.NFT_MSG_GETRULE, t.family, kernel.About(t.name, name), func(r attr.Reply) {
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
	err = t.kernel.Get(ctx, unix.NFT_MSG_GETSET, t.family, kernel.About(t.name, set), func(r attr.Reply) {
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
	about := kernel.AboutElements(t.name, set, string(key))
	err = t.kernel.Get(ctx, unix.NFT_MSG_GETSETELEM, t.family, about, func(r attr.Reply) {
		element = slices.Clone(attr.Find(attr.Find(r.Attributes(), unix.NFTA_SET_ELEM_LIST_ELEMENTS), unix.NFTA_LIST_ELEM))
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("look up an element of table %s %s, set %s: %w", t.family.NFT(), t.name, set, err)
	}
	t.found[at] = element
	return element, nil
}
