//go:build linux && cgo

package nvml

/*
#cgo CFLAGS: -std=gnu11 -O2
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// session guards the one that the shim can hold.
var session sync.Mutex

// maxGPUs bounds what a broken library may say.
const maxGPUs = 1024

// read asks a library about all GPUs.
func read(library string) ([]device, error) {
	session.Lock()
	defer session.Unlock()
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	var why [512]C.char
	if C.nvml_begin(name, &why[0], C.size_t(len(why))) != 0 {
		return nil, fmt.Errorf("no NVML: %s", C.GoString(&why[0]))
	}
	defer C.nvml_end()
	var n C.uint
	if r := C.nvml_count(&n); r != 0 {
		return nil, fmt.Errorf("NVML: nvmlDeviceGetCount_v2: %s", C.GoString(C.nvml_text(r)))
	}
	if n > maxGPUs {
		return nil, fmt.Errorf("NVML: %d GPUs; gccl knows hosts of up to %d", n, maxGPUs)
	}
	raw := make([]C.struct_nvml_gpu, n)
	devices := make([]device, n)
	for i := range raw {
		if r := C.nvml_gpu(C.uint(i), &raw[i]); r != 0 {
			return nil, fmt.Errorf("NVML: GPU %d: %s (nvidia-smi -q shows more)", i, C.GoString(C.nvml_text(r)))
		}
		devices[i] = deviceOf(&raw[i])
	}
	for i := range raw {
		devices[i].peers = map[int][2]int{}
		for j := range raw {
			if i != j {
				var read, write C.int
				C.nvml_p2p(&raw[i], &raw[j], &read, &write)
				devices[i].peers[j] = [2]int{int(read), int(write)}
			}
		}
	}
	return devices, nil
}

func deviceOf(g *C.struct_nvml_gpu) device {
	d := device{
		bus: C.GoString(&g.bus[0]), uuid: C.GoString(&g.uuid[0]), name: C.GoString(&g.name[0]),
		major: int(g.major), minor: int(g.minor), memory: int64(g.memory), mig: g.mig != 0,
	}
	for i := range g.part[:g.parts] {
		d.parts = append(d.parts, C.GoString(&g.part[i][0]))
	}
	for _, l := range g.link[:g.links] {
		d.links = append(d.links, link{C.GoString(&l.bus[0]), int(l.kind)})
	}
	if g.has_fabric != 0 {
		d.fabric = &fabric{clique: uint32(g.clique), state: int(g.fabric_state)}
		for i, b := range g.cluster {
			d.fabric.cluster[i] = byte(b)
		}
		if g.fabric_status != 0 {
			d.fabric.status = C.GoString(C.nvml_text(g.fabric_status))
		}
	}
	return d
}
