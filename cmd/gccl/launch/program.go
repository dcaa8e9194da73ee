package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// ProgramError says why a program can't be run: it is not there, or it is and the system does not run it.
type ProgramError struct {
	Program string
	Err     error // wraps exec.ErrNotFound, exec.ErrDot or the system's error
}

func (e *ProgramError) Error() string { return fmt.Sprintf("launch: start %q: %v", e.Program, e.Err) }
func (e *ProgramError) Unwrap() error { return e.Err }

// ExitCode returns what shells exit with: 127 where there is no such program, 126 where there is one that cannot be run.
func (e *ProgramError) ExitCode() int {
	if errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist) {
		return 127
	}
	return 126
}

// find returns the path of a program. An error is a *ProgramError.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err == nil {
		return path, nil
	}
	if errors.Is(err, exec.ErrNotFound) {
		if path := shut(program); path != "" { // of which LookPath says nothing
			err = &fs.PathError{Op: "exec", Path: path, Err: syscall.EACCES}
		}
	}
	return "", &ProgramError{program, err}
}

// shut returns the first file in PATH of the name that is there, which nobody may run; "" if there is none.
func shut(name string) string {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return ""
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return ""
}

// shortages are what fork and exec say when it is not the program that stands in the way.
var shortages = []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EINTR}

// startError is what is to be told of a rank's process that could not be started.
func startError(rank int, program string, err error) error {
	var at *fs.PathError
	if !errors.As(err, &at) || at.Op != "fork/exec" || slices.ContainsFunc(shortages, func(s error) bool { return errors.Is(err, s) }) {
		return fmt.Errorf("launch: start rank %d of %q: %w", rank, program, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: it was there, so see what runs it: the program in its first line behind #!, or its dynamic linker", err)
	}
	return &ProgramError{program, fmt.Errorf("rank %d: %w", rank, err)}
}
