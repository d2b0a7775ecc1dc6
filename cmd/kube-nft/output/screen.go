package output

import "io"

// A painter is a writer that, on a terminal, can replace the lines that it showed before.
type painter interface {
	Rows() int // of the terminal; 0 if there is none
	Repaint(lines string) error
}

// A Screen shows one text after the other. On a terminal, each takes the place of the one before.
type Screen struct {
	out   io.Writer
	begun bool
}

// NewScreen returns a screen on a command's output.
func NewScreen(out io.Writer) *Screen { return &Screen{out: out} }

// Rows returns how many lines the terminal has; 0 if there is no terminal.
func (s *Screen) Rows() int {
	if terminal, ok := s.out.(painter); ok {
		return terminal.Rows()
	}
	return 0
}

// Show prints a text of whole lines.
func (s *Screen) Show(text string) error {
	if s.Rows() > 0 {
		return s.out.(painter).Repaint(text)
	}
	if s.begun {
		text = "\n" + text
	}
	s.begun = true
	_, err := io.WriteString(s.out, text)
	return err
}
