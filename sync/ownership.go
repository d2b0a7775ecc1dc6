package sync

import "context"

// Disown makes the tables belong to nobody, for an administrator who wants to change them,
// and returns when that has been committed. It lasts as long as the loop. With the table that
// is made anew, connections and what clients are remembered with stay.
func (l *Loop) Disown(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case l.disown <- answer:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release begins what Disown asks for.
func (l *Loop) release(answer chan<- error) {
	l.ruleset.SetOwned(false)
	l.known = false
	l.disowning = append(l.disowning, answer)
}

// answer tells those who wait for Disown how it went.
func (l *Loop) answer(err error) {
	for _, answer := range l.disowning {
		answer <- err
	}
	l.disowning = nil
}
