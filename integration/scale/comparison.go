package main

import (
	"fmt"
	"io"
	"math"
	"time"
)

// A comparison holds what was measured in hostile worlds, each row beside a friendly twin of the
// same run.
type comparison struct{ rows []compared }

// A compared is one row. Beside is NaN if there is nothing to compare with.
type compared struct {
	world, what   string
	unit          unit
	worst, beside float64
	bar           bar
}

// A bar is what a row has to keep to; the zero bar is none.
type bar struct {
	times float64 // the worst is at most so many times what stands beside it
	most  float64 // the worst is at most so much
}

func times(n float64) bar { return bar{times: n} }

func most(n float64) bar { return bar{most: n} }

// nothing stands beside a row that only a bar can judge.
var nothing = math.NaN()

func (c *comparison) add(world, what string, u unit, worst, beside float64, b bar) {
	c.rows = append(c.rows, compared{world, what, u, worst, beside, b})
}

func (c *comparison) duration(world, what string, worst, beside time.Duration, b bar) {
	c.add(world, what, seconds, worst.Seconds(), beside.Seconds(), b)
}

// missed reports whether a row does not keep to its bar.
func (r *compared) missed() bool {
	return r.bar.times > 0 && r.worst > r.bar.times*r.beside || r.bar.most > 0 && r.worst > r.bar.most
}

// want is the bar for people.
func (r *compared) want() (text string) {
	switch {
	case r.bar.times > 0:
		text = fmt.Sprintf("ratio at most %.4g", r.bar.times)
	case r.bar.most > 0:
		text = "at most " + r.unit.text(r.bar.most)
	}
	if r.missed() {
		text += " (**missed**)"
	}
	return text
}

// writeTable writes a table in Markdown.
func (c *comparison) writeTable(w io.Writer) {
	fmt.Fprint(w, "| world | measured | hostile | friendly twin | ratio | must be |\n|---|---|--:|--:|--:|---|\n")
	world := ""
	for i := range c.rows {
		r := &c.rows[i]
		name := r.world
		if name == world {
			name = "" // the same as above
		}
		world = r.world
		fmt.Fprintf(w, "| %s | %s | %s |", name, r.what, r.unit.text(r.worst))
		if math.IsNaN(r.beside) {
			fmt.Fprint(w, " | |")
		} else {
			fmt.Fprintf(w, " %s | %.2f |", r.unit.text(r.beside), r.worst/r.beside)
		}
		fmt.Fprintf(w, " %s |\n", r.want())
	}
}

// writeBench writes a line for each number, as go test -bench does.
func (c *comparison) writeBench(w io.Writer) {
	for i := range c.rows {
		r := &c.rows[i]
		name := benchName(r.world) + "/" + benchName(r.what)
		fmt.Fprintf(w, "BenchmarkWorst/%s/hostile 1 %g %s\n", name, r.worst, r.unit)
		if !math.IsNaN(r.beside) {
			fmt.Fprintf(w, "BenchmarkWorst/%s/twin 1 %g %s\n", name, r.beside, r.unit)
		}
	}
}
