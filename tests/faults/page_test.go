//go:build linux

package faults

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
)

// page is a file through which the ranks and their test tell each other where they are. What a rank wrote last is still there when it
// has been killed. Words are written by one system call, and by one writer each.
type page struct{ file *os.File }

// Words of a page: a few for all, then some for each rank.
const (
	wordStruck = iota // when the fault struck, in nanoseconds of now
	wordWoken         // when it ended
	wordsForAll
)

const (
	wordState = iota // what it is in
	wordStage        // how far it got
	wordsForEach
)

// Stages of a rank.
const (
	looping  = iota + 1 // all ranks have made a call
	failed              // it has the error, and filled its buffers
	shrunk              // it has a new communicator
	finished            // it made its good calls
	ended               // it is closed
)

const pageVar = "GCCL_FAULTS_PAGE"

// newPage makes a page for a launch; its path is for the environment of the ranks.
func newPage(t *testing.T) (*page, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page")
	p, err := openPage(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.file.Close() })
	return p, path
}

func openPage(path string) (*page, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	return &page{f}, err
}

func (p *page) put(word int, v int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(v))
	if _, err := p.file.WriteAt(b[:], int64(8*word)); err != nil {
		panic(fmt.Sprintf("progress page: %v", err))
	}
}

// get returns 0 for a word that nobody has written.
func (p *page) get(word int) int64 {
	var b [8]byte
	p.file.ReadAt(b[:], int64(8*word))
	return int64(binary.LittleEndian.Uint64(b[:]))
}

func of(rank, word int) int { return wordsForAll + rank*wordsForEach + word }

// awaitStage returns when all these ranks are as far, or false when that takes too long.
func (p *page) awaitStage(stage int64, patience time.Duration, ranks ...int) bool {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		behind := 0
		for _, r := range ranks {
			if p.get(of(r, wordStage)) < stage {
				behind++
			}
		}
		if behind == 0 {
			return true
		}
		if time.Since(start) > patience {
			return false
		}
	}
}

// now is a time that all processes of the machine share.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// state is what a rank does at a moment.
type state struct {
	inCall bool
	kind   comm.Kind
	bytes  int // of the larger buffer
	number int // of the call, from 0
}

func (s state) word() int64 {
	w := int64(s.number)<<40 | int64(s.bytes)<<9 | int64(s.kind)<<1
	if s.inCall {
		w |= 1
	}
	return w
}

func stateOf(w int64) state {
	return state{w&1 != 0, comm.Kind(w >> 1 & 0xff), int(w >> 9 & (1<<31 - 1)), int(w >> 40)}
}

// String is the phase for a histogram.
func (s state) String() string {
	size := "large"
	switch {
	case !s.inCall:
		return "between calls"
	case s.bytes <= 4<<10:
		size = "small"
	case s.bytes <= 256<<10:
		size = "medium"
	}
	return fmt.Sprintf("in %s %v", size, s.kind)
}
