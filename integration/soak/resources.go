package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A usage is what a process uses, as it says itself.
type usage struct{ goroutines, descriptors, memory float64 } // memory in bytes

// metricsURL is where kube-nft serves its metrics by default.
const metricsURL = "http://127.0.0.1:10249/metrics"

// scrapeUsage asks kube-nft.
func scrapeUsage() (usage, error) {
	response, err := http.Get(metricsURL)
	if err != nil {
		return usage{}, err
	}
	defer response.Body.Close()
	return parseUsage(response.Body)
}

// parseUsage finds a usage in the text format of Prometheus.
func parseUsage(text io.Reader) (u usage, err error) {
	missing := map[string]*float64{
		"go_goroutines": &u.goroutines, "process_open_fds": &u.descriptors, "process_resident_memory_bytes": &u.memory,
	}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if to := missing[name]; to != nil {
			if *to, err = strconv.ParseFloat(value, 64); err != nil {
				return u, fmt.Errorf("metric %s: %w", name, err)
			}
			delete(missing, name)
		}
	}
	if lines.Err() == nil && len(missing) > 0 {
		return u, errors.New("the metrics do not say what the process uses")
	}
	return u, lines.Err()
}

// Limits on growth from the beginning to the end of a run. A leak grows with every cycle;
// connections that come back after a fault, and what the runtime keeps, do not.
const (
	moreGoroutines  = 12
	moreDescriptors = 8
	moreMemory      = 24 << 20
	moreMemoryShare = 0.3 // of what was used before
)

// leak compares the last third of a run's samples with the first third; nil if there are too few,
// or nothing grows.
func leak(samples []usage) error {
	third := len(samples) / 3
	if third == 0 {
		return nil
	}
	early, late := typical(samples[:third]), typical(samples[len(samples)-third:])
	switch {
	case late.goroutines > early.goroutines+moreGoroutines:
		return fmt.Errorf("goroutines grow from %.0f to %.0f", early.goroutines, late.goroutines)
	case late.descriptors > early.descriptors+moreDescriptors:
		return fmt.Errorf("descriptors grow from %.0f to %.0f", early.descriptors, late.descriptors)
	case late.memory > early.memory*(1+moreMemoryShare)+moreMemory:
		return fmt.Errorf("memory grows from %.1f MiB to %.1f MiB", early.memory/(1<<20), late.memory/(1<<20))
	}
	return nil
}

// typical returns the median of each number.
func typical(samples []usage) usage {
	median := func(of func(usage) float64) float64 {
		values := make([]float64, len(samples))
		for i, sample := range samples {
			values[i] = of(sample)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return usage{
		goroutines:  median(func(u usage) float64 { return u.goroutines }),
		descriptors: median(func(u usage) float64 { return u.descriptors }),
		memory:      median(func(u usage) float64 { return u.memory }),
	}
}
