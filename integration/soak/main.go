// Command soak lets kube-nft follow a cluster that does not come to rest, for as long as one
// likes: it is the program behind make soak and make chaos.
//
// Services and endpoints change at random behind an API server that cuts connections, loses
// its history, answers late, twice and not at all. Beside kube-nft, nft changes and deletes
// its tables, and clients talk TCP and UDP to Services that stay. With -chaos kube-nft is
// killed again and again, and the node's addresses come and go.
//
// Every cycle ends with a calm, in which kube-nft has to come to hold exactly what a fresh
// start would program, and to answer the clients. What it uses then, goroutines, descriptors
// and memory, must not grow. All of it happens in a network namespace that ends with the
// program; it needs root and nft.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// A plan is what the command line asks for.
type plan struct {
	binary   string
	duration time.Duration
	cycle    time.Duration // of trouble, before a calm
	services int           // that change
	seed     uint64
	chaos    bool
}

func main() {
	var p plan
	flag.StringVar(&p.binary, "binary", "bin/kube-nft", "the kube-nft to test")
	flag.DurationVar(&p.duration, "duration", 10*time.Minute, "how long, at least")
	flag.DurationVar(&p.cycle, "cycle", 10*time.Second, "how long there is trouble before a calm")
	flag.IntVar(&p.services, "services", 200, "Services that change")
	flag.Uint64Var(&p.seed, "seed", uint64(time.Now().UnixNano()), "of what happens; the program prints it")
	flag.BoolVar(&p.chaos, "chaos", false, "kill kube-nft and change the node's addresses, too")
	inside := flag.Bool("inside", false, "the network namespace is ours already")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := start(ctx, &p, *inside)
	stop()
	var exit *exec.ExitError
	switch {
	case !*inside && errors.As(err, &exit) && exit.Exited(): // the process inside has said why
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "soak: %v\n", err)
		os.Exit(1)
	}
}

// start runs the plan, in a network namespace of its own.
func start(ctx context.Context, p *plan, inside bool) error {
	if !inside {
		return again(fmt.Sprintf("-seed=%d", p.seed))
	}
	s, err := newSoak(p, os.Stdout)
	if err != nil {
		return err
	}
	return errors.Join(s.run(ctx), s.close())
}

// again starts this program once more, in an empty network namespace. It gets the signals of
// the terminal as we do, and dies with us.
func again(seed string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // Pdeathsig comes when the thread ends that started the child
	cmd := exec.Command(self, append(os.Args[1:], seed, "-inside")...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("network namespace: %w; run as root", err)
	}
	return cmd.Wait()
}
