package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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

// shortages are what the system says when it is not the program that stands in the way, and what helps.
var shortages = map[syscall.Errno]string{
	syscall.EAGAIN: "too many processes and threads: raise ulimit -u, or the pids.max of the control group, or start fewer ranks",
	syscall.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE), of which the launcher needs about 4 a rank, or start fewer ranks",
	syscall.ENFILE: "the whole system has too many open files: raise sysctl fs.file-max",
	syscall.ENOMEM: "the host, or the control group, has no memory left for another process",
	syscall.EINTR:  "try again",
}

// hinted adds what helps to an error about what the system has too little of.
func hinted(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) && shortages[errno] != "" {
		return fmt.Errorf("%w: %s", err, shortages[errno])
	}
	return err
}

// startError is what is to be told of a rank's process that could not be started.
func startError(rank int, program string, err error) error {
	var at *fs.PathError
	if hint := hinted(err); hint != err || !errors.As(err, &at) || at.Op != "fork/exec" {
		return fmt.Errorf("launch: start rank %d of %q: %w", rank, program, hint)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: it was there, so see what runs it: the program in its first line behind #!, or its dynamic linker", err)
	}
	return &ProgramError{program, fmt.Errorf("rank %d: %w", rank, err)}
}
