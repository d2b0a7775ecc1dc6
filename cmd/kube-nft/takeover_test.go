package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nft/kube-nft/nft/legacy"
)

// TestSteady: a process that is hidden has to stay for a while; one that is seen is believed at
// once.
func TestSteady(t *testing.T) {
	hidden, seen := legacy.Process{Command: "hidden from here"}, legacy.Process{PID: 7, Command: "kube-proxy"}
	for name, tt := range map[string]struct {
		process legacy.Process
		lives   time.Duration
		found   int
		takes   time.Duration
	}{
		"dies":         {hidden, 120 * time.Millisecond, 0, 150 * time.Millisecond},
		"stays":        {hidden, time.Hour, 1, time.Second},
		"is seen":      {seen, time.Hour, 1, 0},
		"is not there": {hidden, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				list := steady(t.Context(), func(string) (list []legacy.Process, _ error) {
					if time.Since(began) < tt.lives {
						list = append(list, tt.process)
					}
					return list, nil
				})
				found, err := list("/proc")
				if took := time.Since(began); len(found) != tt.found || err != nil || took != tt.takes {
					t.Errorf("found %v, %v after %s", found, err, took)
				}
			})
		})
	}
}
