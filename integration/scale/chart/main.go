// Command chart draws what the scale program has measured, as SVG files next to its results.
//
// It is a module of its own: nothing else of this repository needs what draws.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A figure is a chart of some rows of the results. The page of the results shows them all.
type figure struct {
	file, title  string
	rows, floors []string
}

var figures = []figure{
	{
		"change.svg", "One endpoint changes: until the kernel has it",
		[]string{
			"daemon: one-endpoint change, API server to commit, p50",
			"one-endpoint change: object to commit",
			"one-endpoint change: our time, object to bytes",
		},
		[]string{"one-endpoint change: floor, raw commit"},
	},
	{
		"cold-start.svg", "Cold start: until the last Service answers",
		[]string{"daemon: exec to the last Service answering", "compile to commit: cold start after the lists"},
		[]string{"floor: raw commit of the same bytes"},
	},
	{
		"first-packet.svg", "First packet of a connection: time in the kernel",
		[]string{"first packet of a connection"},
		[]string{"first packet: floor, one static DNAT map of all Services", "first packet: floor, one static DNAT rule",
			"first packet: floor, empty nat chains"},
	},
}

// comparisons are charts of a row of make compare, with a line for each contender.
var comparisons = []struct {
	file, title, row string
	linear           bool
}{
	{"compare-start.svg", "Start: until the last Service answers", "start, until the last Service answers", false},
	{"compare-endpoint.svg", "A Service gets its first endpoint: until a client reaches it",
		"first endpoint of a Service, until a client reaches it, median", false},
	{"compare-rate.svg", "Connections in a second of the clients' CPU time, to Services chosen at random",
		"connections in a second of the clients' CPU time", true},
	{"compare-connect.svg", "Connect to a Service chosen at random, 99th percentile", "connect, p99", false},
	{"compare-change.svg", "The same while 200 endpoints a second change", "connect under change, p99", false},
	{"compare-failed.svg", "Connects that fail while 200 endpoints a second change, of a million",
		"connects that failed under change, of a million", true},
}

func main() {
	dir := flag.String("results", "../../results", "directory to write the charts to, with bench.txt of the scale program")
	compared := flag.Bool("compare", false, "draw compare.txt of make compare instead")
	flag.Parse()
	draw := run
	if *compared {
		draw = compare
	}
	if err := draw(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	r, err := readFile(filepath.Join(dir, "bench.txt"))
	if err != nil {
		return err
	}
	for _, f := range figures {
		c := chart{title: f.title, x: r.services}
		for i, name := range slices.Concat(f.rows, f.floors) {
			c.series = append(c.series, r.series(name, benchName(name), i >= len(f.rows)))
		}
		if err := c.write(filepath.Join(dir, f.file)); err != nil {
			return err
		}
	}
	return nil
}

func compare(dir string) error {
	r, err := readFile(filepath.Join(dir, "compare.txt"))
	if err != nil {
		return err
	}
	for _, f := range comparisons {
		c := chart{title: f.title, x: r.services, linear: f.linear}
		for _, row := range slices.Sorted(maps.Keys(r.rows)) {
			if contender, ok := strings.CutPrefix(row, benchName(f.row)+"-"); ok {
				c.series = append(c.series, r.series(contender, row, false))
			}
		}
		if err := c.write(filepath.Join(dir, f.file)); err != nil {
			return err
		}
	}
	return nil
}

func readFile(path string) (*results, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// results are the numbers by row and number of Services, durations in seconds.
type results struct {
	services []float64
	rows     map[string]map[float64]float64
}

// series returns a row of the results.
func (r *results) series(name, row string, floor bool) series {
	s := series{name: name, floor: floor}
	for _, x := range r.services {
		y, measured := r.rows[row][x]
		if !measured {
			y = math.NaN()
		}
		s.y = append(s.y, y)
	}
	return s
}

// read takes the numbers of the clusters that have as many endpoints to a Service as the first
// one: an axis has room for one number.
func read(from io.Reader) (*results, error) {
	r := &results{rows: make(map[string]map[float64]float64)}
	endpoints := 0
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		text, isRow := strings.CutPrefix(lines.Text(), "BenchmarkScale/")
		if !isRow {
			continue
		}
		var name, unit string
		var services, value float64
		var each int
		if _, err := fmt.Sscanf(strings.ReplaceAll(text, "/", " "), "%s services=%g endpoints=%d 1 %g %s", &name, &services,
			&each, &value, &unit); err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		if endpoints == 0 {
			endpoints = each
		}
		if each != endpoints {
			continue
		}
		if !slices.Contains(r.services, services) {
			r.services = append(r.services, services)
		}
		if r.rows[name] == nil {
			r.rows[name] = make(map[float64]float64)
		}
		r.rows[name][services] = value
	}
	return r, lines.Err()
}

// benchName is the name of a row in bench.txt: without what separates fields and parts.
func benchName(name string) string {
	words := strings.FieldsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", r|0x20)
	})
	return strings.ToLower(strings.Join(words, "-"))
}
