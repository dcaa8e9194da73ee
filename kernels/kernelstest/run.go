package kernelstest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
)

// Run checks device against the contract. With -short it takes fewer lengths.
func Run(t *testing.T, device Device) {
	t.Run("Reduce", func(t *testing.T) { runReduce(t, device) })
	t.Run("ReduceSpecials", func(t *testing.T) { runSpecials(t, device) })
	t.Run("PreMul", func(t *testing.T) { runPreMul(t, device) })
	t.Run("PostDiv", func(t *testing.T) { runPostDiv(t, device) })
	t.Run("Nothing", func(t *testing.T) { runNothing(t, device) })
	t.Run("Refusals", func(t *testing.T) { runRefusals(t, device) })
	runCases(t, device)
}

// Numbers of sources that kernels may have loops of their own for.
var sources = []int{1, 2, 3, 4, 5, 8, 9}

// lengths returns elements per run, the largest first. Kernels with blocks of their own have the long
// ones to go wrong at.
func lengths() []int {
	if testing.Short() {
		return []int{1033, 512, 0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 255, 256, 257}
	}
	all := []int{4099, 2051, 1025, 1024, 1023, 513, 512, 511}
	for n := range 258 {
		all = append(all, n)
	}
	return all
}

// A layout is where the buffers of one run lie. Offsets are multiples of the element size.
type layout struct {
	length int
	offset int // of the destination from an address that is a multiple of 64; the sources' follow from it
	place  int // the source that is the destination, or -1
}

// layouts calls f with every length at some offset, and with some lengths at every offset; apart, and
// in place at every source that kernels are likely to treat alike.
func layouts(d kernels.DType, nsrc int, f func(layout)) {
	size := d.Size()
	few := []int{1, 3, 64, 71, 256}
	if testing.Short() {
		few = []int{1, 71}
	}
	for place := -1; place < nsrc; place++ {
		if place > 4 && place < nsrc-1 {
			continue
		}
		for _, n := range lengths() {
			f(layout{n, n * size % 64, place})
		}
		for _, n := range few {
			for offset := 0; offset < 64; offset += size {
				f(layout{n, offset, place})
			}
		}
	}
}

func runReduce(t *testing.T, device Device) {
	for _, d := range kernels.DTypes() {
		for _, op := range kernels.RedOps() {
			t.Run(fmt.Sprintf("%s/%s", d, op), func(t *testing.T) {
				kernel, err := device.Reducer(d, op)
				need(t, err)
				for _, nsrc := range sources {
					rig := newRig(d, nsrc)
					want := Reduce(d, op, rig.data)
					layouts(d, nsrc, func(l layout) {
						rig.check(t, l, want, func(dst unsafe.Pointer, srcs []unsafe.Pointer) { kernel(dst, srcs, l.length) })
					})
				}
			})
		}
	}
}

func runPreMul(t *testing.T, device Device) {
	for _, d := range kernels.DTypes() {
		if !d.IsFloat() {
			continue
		}
		t.Run(d.String(), func(t *testing.T) {
			kernel, err := device.PreMul(d)
			need(t, err)
			for _, nsrc := range sources {
				rig := newRig(d, nsrc)
				for scaled := kernels.AllSources; scaled < nsrc; scaled++ {
					// A power of two, two that round to each type, and one that makes denormals.
					factor := []float64{1.0 / 8, 1.0 / 3, -1.0 / 7, 0x1p-13}[(scaled+1)%4]
					want := PreMul(d, rig.data, scaled, factor)
					layouts(d, nsrc, func(l layout) {
						rig.check(t, l, want, func(dst unsafe.Pointer, srcs []unsafe.Pointer) {
							kernel(dst, srcs, l.length, scaled, factor)
						})
					})
				}
			}
		})
	}
}

func runPostDiv(t *testing.T, device Device) {
	for _, d := range kernels.DTypes() {
		if d.IsFloat() {
			continue
		}
		t.Run(d.String(), func(t *testing.T) {
			kernel, err := device.PostDiv(d)
			need(t, err)
			rig := newRig(d, 1)
			for _, divisor := range []int64{1, 2, 3, 4, 7, 127, 128, 200, 256, 1<<31 - 1, 1 << 31, 1 << 32, 1<<63 - 1} {
				want := PostDiv(d, rig.data[0], divisor)
				layouts(d, 1, func(l layout) {
					if l.place == 0 {
						rig.check(t, l, want, func(dst unsafe.Pointer, _ []unsafe.Pointer) { kernel(dst, l.length, divisor) })
					}
				})
			}
		})
	}
}

// runSpecials folds every pair of special values.
func runSpecials(t *testing.T, device Device) {
	for _, d := range kernels.DTypes() {
		specials := Specials(d)
		a := make([]byte, len(specials)*len(specials)*d.Size())
		b := bytes.Clone(a)
		for i := range len(specials) * len(specials) {
			setBits(d, a, i, specials[i/len(specials)])
			setBits(d, b, i, specials[i%len(specials)])
		}
		for _, op := range kernels.RedOps() {
			t.Run(fmt.Sprintf("%s/%s", d, op), func(t *testing.T) {
				kernel, err := device.Reducer(d, op)
				need(t, err)
				rig := rigOf(d, [][]byte{a, b})
				l := layout{length: len(specials) * len(specials), place: -1}
				rig.check(t, l, Reduce(d, op, rig.data), func(dst unsafe.Pointer, srcs []unsafe.Pointer) { kernel(dst, srcs, l.length) })
			})
		}
	}
}

// runNothing folds no elements, without memory.
func runNothing(t *testing.T, device Device) {
	none := []unsafe.Pointer{nil, nil, nil}
	for _, d := range kernels.DTypes() {
		for _, n := range []int{0, -1} {
			for _, op := range kernels.RedOps() {
				if kernel, err := device.Reducer(d, op); err == nil {
					kernel(nil, none, n)
				}
			}
			if kernel, err := device.PreMul(d); err == nil {
				kernel(nil, none, n, 1, 0.5)
			}
			if kernel, err := device.PostDiv(d); err == nil {
				kernel(nil, n, 2)
			}
		}
	}
}

func runRefusals(t *testing.T, device Device) {
	const noType, noOp = kernels.DType(77), kernels.RedOp(9)
	_, badType := device.Reducer(noType, kernels.Sum)
	_, badOp := device.Reducer(kernels.Float32, noOp)
	_, badPreMul := device.PreMul(noType)
	_, badPostDiv := device.PostDiv(noType)
	for _, err := range []error{badType, badOp, badPreMul, badPostDiv} {
		var value *kernels.ValueError
		if !errors.Is(err, kernels.ErrInvalid) || !errors.As(err, &value) {
			t.Errorf("a value out of range gives %v, want a *kernels.ValueError", err)
		}
	}
	for _, d := range kernels.DTypes() {
		var err error
		if d.IsFloat() {
			_, err = device.PostDiv(d)
		} else {
			_, err = device.PreMul(d)
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: the scaling for the other kind of types gives %v, want errors.ErrUnsupported", d, err)
		}
	}
}

// need skips a test of what the device has not got, and fails one of what it should have.
func need(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}
