package config

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

// Limits of lines about invalid fields in a minute: a tenant can write an object with such a field a
// thousand times a second.
const (
	fieldsPerNamespace = 100
	fieldsTotal        = 1000
)

// logRefused logs invalid fields of objects, each once a minute, and calls report with each if report is not nil.
func logRefused(log *zap.Logger, report func(error)) func(error) {
	lines := &quota.Quota{Interval: time.Minute, PerNamespace: fieldsPerNamespace, Total: fieldsTotal,
		Exceeded: func(namespace string) {
			log.Warn("too many invalid fields in this namespace; the rest is not logged this minute",
				zap.String("namespace", namespace))
		}}
	return func(err error) {
		list := []error{err}
		if joined := (interface{ Unwrap() []error })(nil); errors.As(err, &joined) {
			list = joined.Unwrap()
		}
		for _, err := range list {
			namespace := ""
			if field := (*tracker.InvalidField)(nil); errors.As(err, &field) {
				namespace = field.Namespace
			}
			if lines.Allow(namespace, err.Error()) {
				log.Warn("kube-nft ignores an invalid field", zap.Error(err))
			}
			if report != nil {
				report(err)
			}
		}
	}
}
