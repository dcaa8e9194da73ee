// Package nvml asks NVIDIA's management library what it knows of a host's GPUs: [topology.GPUFacts].
//
// libnvidia-ml.so.1, which comes with the driver, is opened at run time, so that one binary runs on every host. Without it, in a build without
// cgo, or where it gives an error, the facts are unknown and the reason names it. A function that an older library lacks
// is a fact less, not an error. (That is why this is not go-nvml, whose symbols the linker must leave open: a missing one ends the
// process, at its start where the toolchain binds early.)
//
// Nothing is changed on the GPUs and no rights are needed. The library keeps no state between calls; any goroutine may call. The first call
// wakes GPUs whose driver does not stay loaded (no persistence mode), which takes a second or more.
//
//	host := topology.Discover(os.DirFS("/"), nvml.GPUs())
package nvml
