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
	flag.IntVar(&p.services, "services", 200, fmt.Sprintf("Services that change, up to %d", firstOfCrowd))
	flag.Uint64Var(&p.seed, "seed", uint64(time.Now().UnixNano()), "of what happens; the program prints it")
	flag.BoolVar(&p.chaos, "chaos", false, "kill kube-nft and change the node's addresses, too; no exchange may fail")
	inside := flag.Bool("inside", false, "the network namespace is ours already")
	flag.Parse()
	runtime.LockOSThread() // what we start is to die with us, and dies with the thread that started it
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
	switch {
	case p.services < 1 || p.services > firstOfCrowd:
		return fmt.Errorf("-services %d: from 1 to %d", p.services, firstOfCrowd)
	case !inside:
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
	cmd := exec.Command(self, append(os.Args[1:], seed, "-inside")...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("network namespace: %w; run as root", err)
	}
	return cmd.Wait()
}
