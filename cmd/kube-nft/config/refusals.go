package config

import (
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/tracker"
)

// How many fields that could not be used are named at most in a minute. A tenant can write an object with
// such a field a thousand times a second. The first one of a namespace is named whatever others do.
const (
	namedPerNamespace = 100
	namedInAll        = 1000
)

// A refusalLog names fields of objects that could not be used: in a minute each one once, as far as the limits go.
type refusalLog struct {
	log *zap.Logger

	mu         sync.Mutex
	began      time.Time // of the minute
	named      map[string]bool
	namespaces map[string]int // how many were named of each
}

// note names a field, unless it has been named or there are too many.
func (l *refusalLog) note(err error) {
	var refusal *tracker.Refusal
	namespace, text := "", err.Error()
	if errors.As(err, &refusal) {
		namespace = refusal.Namespace
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.named == nil || now.Sub(l.began) >= time.Minute {
		l.began, l.named, l.namespaces = now, make(map[string]bool), make(map[string]int)
	}
	switch n := l.namespaces[namespace]; {
	case l.named[text]:
	case n == 0, n < namedPerNamespace && len(l.named) < namedInAll:
		l.named[text] = true
		l.namespaces[namespace]++
		l.log.Warn("refused", zap.Error(err))
	case n <= namedPerNamespace:
		l.namespaces[namespace] = namedPerNamespace + 1
		l.log.Warn("more is refused than is named in a minute", zap.String("namespace", namespace))
	}
}
