package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A unit says what a number counts, in benchstat's words.
type unit string

const (
	seconds   unit = "sec/op"
	octets    unit = "B"
	count     unit = "count"
	perSecond unit = "op/s"
	ratio     unit = "x"
)

// text returns a value for people.
func (u unit) text(value float64) string {
	switch u {
	case seconds:
		return shortDuration(time.Duration(value * float64(time.Second)))
	case octets:
		return shortBytes(value)
	case ratio:
		return fmt.Sprintf("%.2f", value)
	}
	return fmt.Sprintf("%.0f", value)
}

// shortDuration is a duration of three significant figures.
func shortDuration(d time.Duration) string {
	digits := time.Duration(1)
	for d/digits >= 1000 {
		digits *= 10
	}
	return strings.Replace(d.Round(digits).String(), "µ", " µ", 1)
}

func shortBytes(n float64) string {
	for _, unit := range []string{"B", "KiB"} {
		if n < 1024 {
			return fmt.Sprintf("%.4g %s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.4g MiB", n)
}

// A metric is one thing that is measured at every size.
type metric struct {
	name string // of the row; unique
	unit unit
}

// A sheet holds what was measured, metrics in the order of their coming.
type sheet struct {
	sizes   []size
	metrics []metric
	values  map[metric]map[size]float64
}

func newSheet(sizes []size) *sheet {
	return &sheet{sizes: sizes, values: make(map[metric]map[size]float64)}
}

// set notes a value.
func (s *sheet) set(at size, name string, unit unit, value float64) {
	m := metric{name, unit}
	if s.values[m] == nil {
		s.values[m] = make(map[size]float64)
		s.metrics = append(s.metrics, m)
	}
	s.values[m][at] = value
}

// duration notes a value in seconds.
func (s *sheet) duration(at size, name string, d time.Duration) {
	s.set(at, name, seconds, d.Seconds())
}

// writeTable writes a table in Markdown, a row for each metric.
func (s *sheet) writeTable(w io.Writer) {
	fmt.Fprint(w, "| |")
	for _, size := range s.sizes {
		fmt.Fprintf(w, " %s |", size)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("--:|", len(s.sizes)))
	for _, m := range s.metrics {
		fmt.Fprintf(w, "| %s |", m.name)
		for _, size := range s.sizes {
			fmt.Fprintf(w, " %s |", m.text(s.values[m], size))
		}
		fmt.Fprintln(w)
	}
}

// text returns the value of a row for people, "" if it was not measured.
func (s *sheet) text(at size, name string) string {
	for _, m := range s.metrics {
		if m.name == name {
			return m.text(s.values[m], at)
		}
	}
	return ""
}

func (m metric) text(values map[size]float64, at size) string {
	if value, ok := values[at]; ok {
		return m.unit.text(value)
	}
	return ""
}

// writeBench writes one line for each number, as go test -bench does.
func (s *sheet) writeBench(w io.Writer) {
	fmt.Fprintln(w, "goos: linux")
	for _, m := range s.metrics {
		for _, size := range s.sizes {
			if value, ok := s.values[m][size]; ok {
				fmt.Fprintf(w, "BenchmarkScale/%s/services=%d/endpoints=%d 1 %g %s\n", benchName(m.name), size.services,
					size.endpoints, value, m.unit)
			}
		}
	}
}

// benchName is a name without what separates fields and parts.
func benchName(name string) string {
	words := strings.FieldsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", r|0x20)
	})
	return strings.ToLower(strings.Join(words, "-"))
}

// least and quantile take a list that is not empty.
func least(list []time.Duration) time.Duration { return slices.Min(list) }

func quantile(list []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
