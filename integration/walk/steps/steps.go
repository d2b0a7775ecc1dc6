// Package steps notes which functions are entered, in a program whose sources package walk has given a call of
// Enter at the beginning of each function.
package steps

import "sync"

var (
	mu      sync.Mutex
	running bool
	entered []string
)

// Enter notes that a function is entered: its file, a blank, its name.
func Enter(function string) {
	mu.Lock()
	defer mu.Unlock()
	if running {
		entered = append(entered, function)
	}
}

// Start begins a record.
func Start() {
	mu.Lock()
	defer mu.Unlock()
	running, entered = true, nil
}

// Stop ends the record and returns it.
func Stop() []string {
	mu.Lock()
	defer mu.Unlock()
	running = false
	return entered
}
