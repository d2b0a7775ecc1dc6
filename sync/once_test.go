package sync

import "context"

// once syncs until nothing is left to change, and removes stale connections.
func (l *Loop) once(ctx context.Context) error {
	for {
		if err := l.sync(ctx); err != nil {
			return err
		}
		if !l.behind {
			break
		}
	}
	l.stale.clean(ctx)
	return nil
}
