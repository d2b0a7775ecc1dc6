package config

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/tracker"
)

// TestRefusedFieldsDoNotFillTheLog: a field that is refused again and again is named once a minute, a namespace
// with very many gets so many lines, and neither hides what is refused of others.
func TestRefusedFieldsDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.WarnLevel)
		refused := logRefused(zap.New(core), nil)
		refuse := func(namespace, name string) {
			refused(&tracker.InvalidField{Kind: "Service", Namespace: namespace, Name: name, Field: "spec", Reason: "is wrong"})
		}
		lines := func(what string, want int) {
			t.Helper()
			if got := len(logged.TakeAll()); got != want {
				t.Errorf("%s: %d lines, want %d", what, got, want)
			}
		}
		for range 1000 {
			refuse("shop", "web")
		}
		lines("one field", 1)
		for i := range 1000 {
			refuse("loud", fmt.Sprint(i))
		}
		lines("a namespace", fieldsPerNamespace+1)
		for i := range 20 * fieldsPerNamespace {
			refuse(fmt.Sprint("many-", i%20), fmt.Sprint(i))
		}
		logged.TakeAll()
		refuse("calm", "web")
		lines("another namespace", 1)
		time.Sleep(time.Minute)
		refuse("shop", "web")
		lines("a minute later", 1)
	})
}
