package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// A selection says which Services a command is about, and how it prints them.
type selection struct {
	namespace string
	name      string
	port      string // the name of a port; empty: all ports
	family    string
	format    output.Form
	labels    string
	labelled  map[types.NamespacedName]bool // the Services with these labels; nil without labels
	sortBy    string
	all       bool // of every namespace, as without a namespace
	watch     bool
}

// NewGet returns the command; reader has the flags of the daemon.
func NewGet(reader *config.Reader) *cobra.Command {
	var s selection
	get := &cobra.Command{
		Use:   "get",
		Short: "List Services, endpoints or affinity entries in the kernel",
		Long: `get lists the Services that are programmed in this network namespace. It reads them from the
kernel, and needs neither the daemon nor the API server. If the daemon runs, get names on stderr
the Services that the quota of their namespace leaves out. The kernel does not know labels: with
--selector, get lists the Services at the daemon's source, the API server or its manifests.

A frontend is an address, protocol and port of a Service, or a node port. It has one list of
endpoints or two: cluster has the endpoints of all nodes, local the endpoints on this node,
for a traffic policy Local. In the list of services, EP counts the endpoints of both lists and
LOCAL those of local. Without such a list, LOCAL is -, and JSON and YAML have no
localEndpoints.

With --watch, get prints a line for each row that is added (+) or removed (-), until you
interrupt it. It reads affinity entries once a second.

The exit code is 1 if NAME is not programmed, and 2 if the kernel cannot be read.`,
		Example: `  kube-nft get services -A -o wide
  kube-nft get endpoints -n shop web --watch
  kube-nft get endpoints shop/web:http
  kube-nft get services -o name | xargs -n1 kube-nft get endpoints
  kube-nft get affinity shop/game -o json
  kube-nft get services -l app=web --sort-by ep`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return config.Usagef("get: expected services, endpoints or affinity")
			}
			return config.Usagef("get %q: expected services, endpoints or affinity", args[0])
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	s.format.AddFlag(get, output.Table, output.Wide, output.Name, output.JSON, output.YAML)
	get.PersistentFlags().StringVarP(&s.namespace, "namespace", "n", "", "only Services of this namespace")
	get.PersistentFlags().BoolVarP(&s.all, "all-namespaces", "A", false, "Services of all namespaces, the default")
	get.PersistentFlags().BoolVarP(&s.watch, "watch", "w", false,
		"keep printing a line for each row that is added or removed")
	get.PersistentFlags().StringVar(&s.family, "family", "", "only this IP family: 4 or 6, also as IPv4 or IPv6")
	get.PersistentFlags().StringVarP(&s.labels, "selector", "l", "",
		"only Services with these labels, as with kubectl get services -l")
	get.PersistentFlags().StringVar(&s.sortBy, "sort-by", "", "sort by the column with this head")
	output.Offer(get, "family", "4", "6")
	output.OfferFrom(get, "sort-by", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return Columns(cmd.Name()), cobra.ShellCompDirectiveNoFileComp
	})
	output.OfferFrom(get, "namespace",
		func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return new(selection).names(cmd, func(n layout.PortName) string { return n.Namespace })
		})
	lists := []*cobra.Command{
		s.command(reader, "services", "List frontends, with the Service that each belongs to", getServices),
		s.command(reader, "endpoints", "List the endpoints of each frontend, with connections if they are counted",
			getEndpoints),
		s.command(reader, "affinity", "List the entries of affinity maps: clients and their endpoints", getAffinity),
	}
	lists[0].Aliases, lists[1].Aliases = []string{"service", "svc"}, []string{"ep"} // kubectl's short names
	get.AddCommand(lists...)
	return get
}

// command declares one kind of list.
func (s *selection) command(reader *config.Reader, what, short string,
	list func(*cobra.Command, *selection, *inspection) error) *cobra.Command {
	return &cobra.Command{
		Use:   what + " [NAME|NAMESPACE/NAME[:PORT]]",
		Short: short,
		Example: "  kube-nft get " + what + "\n  kube-nft get " + what + " -n shop -o wide\n  kube-nft get " + what +
			" shop/web --watch",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return s.names(cmd, func(n layout.PortName) string { return n.Name })
		},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return config.Usagef("get %s: expected one name of a Service at most, got %d", what, len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(s.setName(args), s.check(), s.checkColumn(what)); err != nil {
				return err
			}
			if err := s.setLabelled(cmd, reader); err != nil {
				return err
			}
			i, err := lookAtTables(cmd.Context())
			if err != nil {
				return TroubleError{err}
			}
			defer i.close()
			programmed := func(table *readback.Table) bool { return len(s.services(table)) > 0 }
			if s.watch {
				return s.follow(cmd, i, list)
			}
			missing := s.name != "" && !slices.ContainsFunc(s.families(i.tables), programmed)
			if !missing || s.format.Document() { // a program gets an empty list
				if err := list(cmd, s, i); err != nil {
					return TroubleError{err}
				}
			}
			for _, text := range s.unserved(cmd.Context()) {
				fmt.Fprintln(cmd.ErrOrStderr(), "kube-nft: "+text)
			}
			if missing {
				name := layout.PortName{Namespace: s.namespace, Name: s.name, Port: s.port}.String()
				where := "here"
				if s.family != "" {
					where += " for " + s.family
				}
				return fmt.Errorf("no Service %s is programmed %s", strings.TrimPrefix(name, "/"), where)
			}
			return nil
		},
	}
}

// setName takes the argument: a name, or a namespace and a name as the lists show them.
func (s *selection) setName(args []string) error {
	if s.all && s.namespace != "" {
		return config.Usagef("--all-namespaces: --namespace %s says otherwise", s.namespace)
	}
	if len(args) == 0 {
		return nil
	}
	namespace, name, qualified := strings.Cut(args[0], "/")
	switch {
	case !qualified:
		s.name = args[0]
		return nil
	case namespace == "" || name == "":
		return config.Usagef("Service %q: expected NAME or NAMESPACE/NAME[:PORT]", args[0])
	case s.namespace != "" && s.namespace != namespace:
		return config.Usagef("Service %s: --namespace %s says otherwise", args[0], s.namespace)
	}
	s.namespace = namespace
	s.name, s.port, _ = strings.Cut(name, ":") // as the lists show them
	return nil
}

// check takes the flags. A family is a digit, or IPv4 or IPv6 in any case, as the lists show it.
func (s *selection) check() error {
	known := s.family == ""
	for _, f := range nft.Families {
		if name := f.String(); "IPv"+s.family == name || strings.EqualFold(s.family, name) {
			s.family, known = name, true
		}
	}
	if s.watch && s.format.Document() {
		return config.Usagef("--watch: expected --output table, wide or name")
	}
	if s.watch && s.labels != "" {
		return config.Usagef("--watch: get reads labels once, so --selector cannot be watched")
	}
	if !known {
		return config.Usagef("--family %s: expected 4, 6, IPv4 or IPv6", s.family)
	}
	return nil
}

// Columns returns the columns of a list by which it can be sorted.
func Columns(list string) []string {
	return map[string][]string{"services": heads(serviceColumns), "endpoints": heads(endpointColumns),
		"affinity": heads(affinityColumns)}[list]
}

// checkColumn takes --sort-by.
func (s *selection) checkColumn(list string) error {
	if known := Columns(list); s.sortBy != "" && !slices.Contains(known, strings.ToLower(s.sortBy)) {
		return config.Usagef("--sort-by %s: expected %s", s.sortBy, tracker.Enumerate(known))
	}
	return nil
}

// setLabelled asks the source of objects which Services have the labels.
func (s *selection) setLabelled(cmd *cobra.Command, reader *config.Reader) error {
	if s.labels == "" {
		return nil
	}
	selector, err := labels.Parse(s.labels)
	if err != nil {
		return config.Usagef("--selector %q: %v", s.labels, err)
	}
	c, _, err := peer.ReadSettings(cmd.Context(), reader, cmd.ErrOrStderr())
	if err != nil {
		return TroubleError{err}
	}
	services, err := c.Services(cmd.Context(), s.namespace, selector, c.Log(cmd.ErrOrStderr()))
	if err != nil {
		return TroubleError{fmt.Errorf("--selector: %w", err)}
	}
	s.labelled = make(map[types.NamespacedName]bool, len(services))
	for i := range services {
		s.labelled[types.NamespacedName{Namespace: services[i].Namespace, Name: services[i].Name}] = true
	}
	return nil
}

// has reports whether a Service is selected.
func (s *selection) has(namespace, name string) bool {
	return (s.namespace == "" || s.namespace == namespace) && (s.name == "" || s.name == name) &&
		(s.labelled == nil || s.labelled[types.NamespacedName{Namespace: namespace, Name: name}])
}

// families lists the selected tables.
func (s *selection) families(tables map[nft.Family]*readback.Table) (list []*readback.Table) {
	for _, f := range nft.Families {
		wanted := s.family == "" || s.family == f.String()
		if table := tables[f]; wanted && table != nil {
			list = append(list, table)
		}
	}
	return list
}

// services lists the selected frontends of a table.
func (s *selection) services(table *readback.Table) []readback.Frontend {
	return slices.DeleteFunc(table.Frontends(), func(service readback.Frontend) bool {
		return !s.has(service.Name.Namespace, service.Name.Name) || s.port != "" && s.port != service.Name.Port
	})
}

// serviceAt offers the shell NAMESPACE/NAME of each Service in the kernel as the argument with this index.
func serviceAt(index int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) != index {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return new(selection).names(cmd, func(n layout.PortName) string { return n.Namespace + "/" + n.Name })
	}
}

// names offers the shell the kernel's names; nothing if they cannot be read.
func (s *selection) names(cmd *cobra.Command, word func(layout.PortName) string) ([]string, cobra.ShellCompDirective) {
	i, err := look(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer i.close()
	words := make(map[string]bool)
	for _, table := range s.families(i.tables) {
		for _, service := range s.services(table) {
			words[word(service.Name)] = true
		}
	}
	return slices.Sorted(maps.Keys(words)), cobra.ShellCompDirectiveNoFileComp
}
