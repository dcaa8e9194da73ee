package launch

import (
	"bytes"
	"io"
	"sync"
)

// maxLine is the longest line that is kept together, in bytes.
const maxLine = 64 << 10

// Lines brings the output of several processes onto one writer, line by line. Its writers may be
// used from any goroutines.
type Lines struct {
	mu sync.Mutex
	w  io.Writer
}

// NewLines returns Lines on w, which nobody else should write to meanwhile.
func NewLines(w io.Writer) *Lines { return &Lines{w: w} }

// Writer returns a writer that puts prefix before every line. What is written to it comes out at the
// end of a line, at the latest after 64 KiB (then a line end is put in, and the rest begins with
// the prefix again), and when it is closed.
func (l *Lines) Writer(prefix string) io.WriteCloser {
	return &linesWriter{lines: l, buf: []byte(prefix), prefix: len(prefix)}
}

type linesWriter struct {
	lines  *Lines
	mu     sync.Mutex
	buf    []byte // the prefix and the line so far
	prefix int
}

// Write never keeps p. An error is the common writer's.
func (w *linesWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for done := 0; done < len(p); {
		rest := p[done:]
		end := bytes.IndexByte(rest, '\n')
		room := maxLine - (len(w.buf) - w.prefix)
		switch {
		case end >= 0 && end <= room:
			w.buf = append(w.buf, rest[:end]...)
			done += end + 1
		case len(rest) > room:
			w.buf = append(w.buf, rest[:room]...)
			done += room
		default:
			w.buf = append(w.buf, rest...)
			return len(p), nil
		}
		if err := w.flush(); err != nil {
			return done, err
		}
	}
	return len(p), nil
}

// Close writes out a line that has no end yet, and one with it.
func (w *linesWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.buf) == w.prefix {
		return nil
	}
	return w.flush()
}

func (w *linesWriter) flush() error {
	w.lines.mu.Lock()
	defer w.lines.mu.Unlock()
	_, err := w.lines.w.Write(append(w.buf, '\n'))
	w.buf = w.buf[:w.prefix]
	return err
}
