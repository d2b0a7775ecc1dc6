package packets

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// answerOne lets the endpoint of one connection of a flow accept it, if the flow is of TCP
// and was translated, and reports an answer that does not come back to the client from
// the address and port that the client had called.
func (b *bench) answerOne(f flow, seen map[tuple]*sighting, sockets map[tuple]int) error {
	if protocols[f.Proto] != unix.IPPROTO_TCP || len(f.Expect.DNAT) == 0 {
		return nil
	}
	for connection, s := range seen {
		if s.forward == nil || s.forward.device == nil {
			continue
		}
		if err := s.forward.device.write(acceptance(s.forward.reverse(), s.forward.sequence)); err != nil {
			return err
		}
		return b.answered(f, connection, sockets)
	}
	return nil
}

// answered reports an error unless the answer to a connection has reached the client.
func (b *bench) answered(f flow, connection tuple, sockets map[tuple]int) error {
	packets, err := b.settle(f.Via, f.From)
	if err != nil {
		return err
	}
	if f.Via == "local" {
		if _, err := unix.Getpeername(sockets[connection]); err != nil {
			return fmt.Errorf("the node's socket does not take the answer to %s: %w", connection, err)
		}
		return nil
	}
	if !slices.ContainsFunc(packets, func(p packet) bool {
		return p.kind == accepts && p.tuple == connection.reverse() && p.intact
	}) {
		return errors.New("the endpoint's answer did not come back as " + connection.reverse().String())
	}
	return nil
}
