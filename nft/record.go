package nft

// recordChains remember where clients went. They exist while a Service port asks for session
// affinity: without them the first packet of a connection passes one base chain less.
func (c *Config) recordChains(f Family) []*Chain {
	record := []Rule{{Translated{}, Jump(recordChain)}}
	return []*Chain{
		{Name: recordChain, Rules: c.recordRules(f)},
		{Name: inputChain, Hook: &Hook{"nat", "input", srcnatPriority}, Rules: record},
		{Name: rememberChain, Hook: &Hook{"nat", "postrouting", srcnatPriority - 1}, Rules: record},
	}
}

// recordRules find the Service port that a translated connection was addressed to. Each
// protocol needs a rule of its own: nft reads the port that connection tracking remembers
// only in the context of one protocol.
func (c *Config) recordRules(f Family) []Rule {
	var rules []Rule
	for _, protocol := range TransportNumbers {
		rules = append(rules,
			Rule{ProtocolIs{protocol}, VerdictFrom{Key: []Part{OriginalDestination, Protocol, OriginalPort}, Map: stickyMap}})
	}
	for _, protocol := range TransportNumbers {
		rule := Rule{ProtocolIs{protocol}}
		if !c.AllNodePorts[f] {
			rule = append(rule, InSet{Key: []Part{OriginalDestination}, Set: nodePortAddressesSet})
		}
		rules = append(rules, append(rule, VerdictFrom{Key: []Part{Protocol, OriginalPort}, Map: stickyNodePortsMap}))
	}
	return rules
}

// acquireRecord makes sure that the chains exist while a Service port has affinity;
// releaseRecord gives them up.
func (r *family) acquireRecord() {
	if r.sticky++; r.sticky > 1 {
		return
	}
	for _, chain := range r.config.recordChains(r.table.Family) {
		r.putChain(chain)
	}
}

func (r *family) releaseRecord() {
	if r.sticky--; r.sticky > 0 {
		return
	}
	for _, chain := range r.config.recordChains(r.table.Family) {
		r.removeChain(chain.Name)
	}
}
