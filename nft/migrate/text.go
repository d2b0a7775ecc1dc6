package migrate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/words"
)

// textWidth is the largest number of columns of a plan's text, unless a single word is longer.
const textWidth = 100

// Text returns the plan for an operator. Each line begins with what becomes of a thing or, among the
// checks, with its level.
func (p *Plan) Text() string {
	var b strings.Builder
	b.WriteString("Before\n")
	for _, c := range p.Checks {
		b.WriteString(line(string(c.Level), c.String()))
	}
	b.WriteString("\nFound\n")
	for i := range p.Inventory.Parts {
		part := &p.Inventory.Parts[i]
		other := p.inOtherFamily(part)
		switch {
		case other != nil && part.Family == "ip6":
			continue // with the one of family ip
		case other != nil:
			b.WriteString(both(part, other))
		default:
			b.WriteString(heading(part.Name(), part.Clean()))
			if part.Needs != "" {
				b.WriteString(line(string(Unknown), "could not be read: needs "+part.Needs))
				continue
			}
			for _, a := range part.Actions {
				b.WriteString(action(a, ""))
			}
		}
	}
	if len(p.Inventory.Parts) == 0 {
		b.WriteString(line("", "nothing of kube-proxy's, and none of the tables that it writes to"))
	}
	b.WriteString("\nSteps of kube-nft migrate apply\n")
	for i, step := range p.Steps {
		b.WriteString(line(fmt.Sprintf("%d.", i+1), step))
	}
	b.WriteString("\n" + p.Summary + "\n")
	return b.String()
}

// inOtherFamily returns the part of the same table in the other family; nil if there is none, or one of the two
// could not be read.
func (p *Plan) inOtherFamily(part *legacy.Part) *legacy.Part {
	for i := range p.Inventory.Parts {
		other := &p.Inventory.Parts[i]
		if other.Backend == part.Backend && other.Table == part.Table && other.Family != part.Family &&
			other.Needs+part.Needs == "" {
			return other
		}
	}
	return nil
}

// both describes a table that both families have. What is the same in both stands once.
func both(ip, ip6 *legacy.Part) string {
	name := fmt.Sprintf("%s ip and ip6 %s", ip.Backend, ip.Table)
	text := heading(name, ip.Clean() && ip6.Clean())
	same := func(a legacy.Action) func(legacy.Action) bool {
		return func(b legacy.Action) bool { a.Where = b.Where; return a == b }
	}
	for _, a := range ip.Actions {
		family := ""
		if !slices.ContainsFunc(ip6.Actions, same(a)) {
			family = "ip: "
		}
		text += action(a, family)
	}
	for _, a := range ip6.Actions {
		if !slices.ContainsFunc(ip.Actions, same(a)) {
			text += action(a, "ip6: ")
		}
	}
	return text
}

// heading is the line above what a part has.
func heading(name string, clean bool) string {
	if clean {
		return "  " + name + ": nothing of kube-proxy's to remove\n"
	}
	return "  " + name + "\n"
}

// action is a line about one thing.
func action(a legacy.Action, family string) string {
	will, rest, _ := strings.Cut(strings.Replace(a.Will, "; ", " ", 1), " ")
	text := family + a.Object + " — " + a.Means
	if rest != "" {
		text += "; " + rest
	}
	return line(will, text)
}

// line writes text behind a first word, broken into indented lines of textWidth.
func line(first, text string) string {
	const margin = 12
	return fmt.Sprintf("    %-*s%s", margin-4, first, words.Wrap(text, textWidth-margin, strings.Repeat(" ", margin)))
}
