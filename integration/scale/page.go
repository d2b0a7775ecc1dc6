package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// figures are the files and titles of the charts, which the program chart draws from bench.txt.
var figures = [][2]string{
	{"change.svg", "One endpoint changes: until the kernel has it"},
	{"cold-start.svg", "Cold start: until the last Service answers"},
	{"first-packet.svg", "First packet of a connection: time in the kernel"},
}

// write writes the page and the benchmark lines into a directory.
func write(dir string, arguments []string, s *sheet, c *comparison) error {
	var bench, page bytes.Buffer
	s.writeBench(&bench)
	c.writeBench(&bench)
	if err := os.WriteFile(filepath.Join(dir, "bench.txt"), bench.Bytes(), 0o644); err != nil {
		return err
	}
	writePage(&page, arguments, s, c)
	return os.WriteFile(filepath.Join(dir, "README.md"), page.Bytes(), 0o644)
}

func writePage(page *bytes.Buffer, arguments []string, s *sheet, c *comparison) {
	fmt.Fprintf(page, pageHead, machine(), strings.Join(arguments, " "), time.Now().UTC().Format(time.DateOnly))
	for _, figure := range figures {
		fmt.Fprintf(page, "![%s](%s)\n", figure[1], figure[0])
	}
	fmt.Fprint(page, "\n## All numbers\n\nA column is a cluster, Services x endpoints of each.\n\n")
	s.writeTable(page)
	if len(c.rows) > 0 {
		fmt.Fprint(page, worstHead)
		c.writeTable(page)
	}
	fmt.Fprint(page, pageEnd)
}

const pageHead = `# Scale

Written by the scale program, integration/scale; do not edit.

- Machine: %s
- Command: %s
- Date: %s

Every number stands next to its floor, measured in the same run: for commits, the same
bytes sent by a bare netlink socket; for packets, nat chains that are empty, hold one static
rule, or one static map. Starts are the least of several runs, packets the least of
several rounds; small changes are medians.

`

const worstHead = `
## Worst cases

A tenant who may create Services made each of these worlds. Beside it stands a friendly twin, which
ran right before or after it. A start lasts from exec to the answer of the last Service. The neighbour
is a plain Service of one port: its lag lasts from the API server's change of one endpoint
to the commit.

`

const pageEnd = `
[bench.txt](bench.txt) has the same numbers for benchstat.
`

// machine describes what the program runs on.
func machine() string {
	var name unix.Utsname
	_ = unix.Uname(&name) // fails for a bad address only
	release, _, _ := bytes.Cut(name.Release[:], []byte{0})
	return fmt.Sprintf("Linux %s, %s, %d CPUs (%s), %s of memory, %s",
		release, runtime.GOARCH, runtime.NumCPU(), field("/proc/cpuinfo", "model name"), field("/proc/meminfo", "MemTotal"),
		runtime.Version())
}

// field returns the value of the first line of a file of /proc that begins with a name.
func field(path, name string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	for _, line := range strings.Split(string(content), "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok {
			_, value, _ := strings.Cut(rest, ":")
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
