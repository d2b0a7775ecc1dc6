// Command scale measures kube-nft in clusters of many Services, against the kernel of this
// machine, and next to each number what the kernel alone takes.
//
// It needs root, the nft program and a kube-nft binary, works in network namespaces of its
// own, and leaves nothing behind. In this process it takes the steps of a cold start and of
// small changes one by one; a real kube-nft that follows an API server over HTTP shows how
// long they take together, and what churn costs. Worst cases, worlds that a tenant has made as bad
// as the API lets him, stand each beside a friendly twin. With -out it writes a results page.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// options are the flags.
type options struct {
	binary string
	peer   string
	modes  string
	out    string
	sizes  []size
	runs   int
	churn  time.Duration
	start  bool
	parts  string
	share  float64
	only   *regexp.Regexp
}

func main() {
	var o options
	sizes := flag.String("sizes", "1000x10,5000x10,10000x10,30000x10,5000x50",
		"clusters to measure, SERVICESxENDPOINTS with commas")
	flag.StringVar(&o.binary, "binary", "bin/kube-nft", "the kube-nft to measure; none if empty")
	flag.StringVar(&o.peer, "peer", "", "a kube-proxy, for the part compare; none if empty")
	flag.StringVar(&o.modes, "modes", "nftables,iptables", "modes of the peer, with commas")
	flag.DurationVar(&patience, "patience", patience, "how long to wait for a proxy; the part compare then goes on")
	flag.StringVar(&o.out, "out", "", "directory to write the results page, charts and benchmark lines to")
	flag.IntVar(&o.runs, "runs", 3, "how often each start is repeated")
	flag.DurationVar(&o.churn, "churn", 30*time.Second, "how long each rate of changes is kept up")
	flag.BoolVar(&o.start, "start", false, "measure the starts alone: their steps, and the time and memory of the daemon")
	flag.StringVar(&o.parts, "parts", "sizes,worst",
		"what to measure, with commas: sizes, clusters of the sizes; worst, worst cases beside their friendly twins; "+
			"compare, a peer in the same clusters")
	flag.Float64Var(&o.share, "share", 1, "size of the worst cases; less than 1 for a trial")
	only := flag.String("only", "",
		"regular expression: the worst cases to measure, by a part of the names in the table; all if empty")
	flag.Parse()
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		fmt.Fprintln(os.Stderr, "scale: -only:", err)
		os.Exit(1)
	}
	if o.sizes, err = parseSizes(*sizes); err == nil {
		err = o.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func (o *options) run() error {
	var sheet sheet
	var worst comparison
	if o.out != "" { // before the measurements, which may take hours
		if err := os.MkdirAll(o.out, 0o755); err != nil {
			return err
		}
	}
	for _, part := range strings.Split(o.parts, ",") {
		switch part {
		case "sizes":
			sheet = *newSheet(o.sizes)
			for _, at := range o.sizes {
				if err := o.measure(&sheet, at); err != nil {
					return fmt.Errorf("%s: %w", at, err)
				}
			}
			sheet.writeTable(os.Stdout)
		case "worst":
			if o.binary == "" {
				return errors.New("worst cases need -binary")
			}
			if err := o.measureWorst(&worst); err != nil {
				return err
			}
			worst.writeTable(os.Stdout)
		case "compare":
			if err := o.compare(os.Stdout); err != nil {
				return err
			}
		default:
			return fmt.Errorf("-parts %q: want sizes, worst or compare", o.parts)
		}
	}
	if o.out == "" || o.parts == "compare" { // which has a page of its own
		return nil
	}
	return write(o.out, os.Args, &sheet, &worst)
}

// measure measures one size, in this process first.
func (o *options) measure(sheet *sheet, at size) error {
	l, err := measureStart(sheet, at, o.runs)
	if err != nil {
		return err
	}
	defer l.close()
	if o.start {
		return o.measureDaemon(sheet, at)
	}
	if err := measureChanges(sheet, at, l); err != nil {
		return err
	}
	if err := measureRollout(sheet, at, l); err != nil {
		return err
	}
	if err := measurePackets(sheet, at, l); err != nil {
		return err
	}
	return o.measureDaemon(sheet, at)
}
