package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gccl-project/gccl/cmd/gccl/bench"
	"github.com/gccl-project/gccl/kernels"
)

// flagValue is a flag whose text is parsed by a function, with errors that say what is accepted.
type flagValue struct {
	kind  string // shown in the help
	text  string
	parse func(string) error
}

func (f *flagValue) String() string { return f.text }
func (f *flagValue) Type() string   { return f.kind }

func (f *flagValue) Set(text string) error {
	if err := f.parse(text); err != nil {
		return err
	}
	f.text = text
	return nil
}

// newFlag returns a flag that has been set to its default.
func newFlag(kind, text string, parse func(string) error) *flagValue {
	if err := parse(text); err != nil {
		panic(err) // a default of ours
	}
	return &flagValue{kind, text, parse}
}

func sizeFlag(to *int64, text string) *flagValue {
	return newFlag("size", text, func(s string) (err error) {
		*to, err = bench.ParseSize(s)
		return err
	})
}

// intFlag takes whole numbers from low on.
func intFlag(to *int, low int, text string) *flagValue {
	return newFlag("int", text, func(s string) error {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || n < int64(low) {
			return fmt.Errorf("want a whole number from %d to 2^31-1", low)
		}
		*to = int(n)
		return nil
	})
}

// countFlag takes a number of things from 1 to most; it has no default.
func countFlag(to *int, things string, most int) *flagValue {
	return &flagValue{kind: "int", parse: func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > most {
			return fmt.Errorf("want a number of %s from 1 to %d", things, most)
		}
		*to = n
		return nil
	}}
}

// gpusFlag takes CUDA's ordinals between commas; it has no default.
func gpusFlag(to *[]int) *flagValue {
	return &flagValue{kind: "ints", parse: func(s string) error {
		var list []int
		for word := range strings.SplitSeq(s, ",") {
			n, err := strconv.ParseUint(strings.TrimSpace(word), 10, 31)
			if err != nil {
				return errors.New("want GPUs by their numbers, from 0, with commas between; leave it out for GPU 0, or a GPU for each rank that a launcher started")
			}
			list = append(list, int(n))
		}
		*to = list
		return nil
	}}
}

// listFlag takes "all" or names between commas.
func listFlag[T any](to *[]T, kind, text string, all []T, parse func(string) (T, error)) *flagValue {
	return newFlag(kind, text, func(s string) error {
		if s == "all" {
			*to = all
			return nil
		}
		var list []T
		for _, word := range strings.Split(s, ",") {
			v, err := parse(word)
			if err != nil {
				return fmt.Errorf("%w, or all", err)
			}
			list = append(list, v)
		}
		*to = list
		return nil
	})
}

func parseRoot(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("root %q; want a rank, from 0", s)
	}
	return int(n), nil
}

func dtypesFlag(to *[]kernels.DType) *flagValue {
	return listFlag(to, "types", "float", kernels.DTypes(), kernels.ParseDType)
}

func opsFlag(to *[]bench.Op) *flagValue {
	return listFlag(to, "ops", "sum", bench.Ops(), bench.ParseOp)
}
