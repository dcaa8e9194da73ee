//go:build !linux || !cgo

package cu

import (
	"errors"
	"fmt"
	"unsafe"
)

// A build without cgo opens no library: everything is unsupported.

func describe(Result) (name, text string) { return "", "" }

func unsupported() error {
	return fmt.Errorf("cu: this build cannot open %s: it was made without cgo or not for Linux: %w", Library, errors.ErrUnsupported)
}

func Load() error                                         { return unsupported() }
func DriverVersion() (int, error)                         { return 0, unsupported() }
func DeviceCount() (int, error)                           { return 0, unsupported() }
func DeviceName(ordinal int) (string, error)              { return "", unsupported() }
func DeviceAttribute(ordinal, attribute int) (int, error) { return 0, unsupported() }
func DeviceUUID(ordinal int) (id [16]byte, err error) {
	err = unsupported()
	return
}
func CanAccessPeer(ordinal, peer int) (bool, error)           { return false, unsupported() }
func PeerAttribute(ordinal, peer, attribute int) (int, error) { return 0, unsupported() }
func PrimaryRetain(ordinal int) (Context, error)              { return 0, unsupported() }
func PrimaryRelease(ordinal int) error                        { return unsupported() }
func EnablePeer(ctx, peer Context) error                      { return unsupported() }
func MemInfo(ctx Context) (free, total int64, err error) {
	err = unsupported()
	return
}
func Synchronize(ctx Context) error                                          { return unsupported() }
func ModuleLoad(ctx Context, ptx []byte) (Module, error)                     { return 0, unsupported() }
func ModuleUnload(ctx Context, m Module) error                               { return unsupported() }
func ModuleFunction(ctx Context, m Module, name string) (Function, error)    { return 0, unsupported() }
func FunctionAttribute(ctx Context, f Function, attribute int) (int, error)  { return 0, unsupported() }
func Occupancy(ctx Context, f Function, threads int) (int, error)            { return 0, unsupported() }
func Granularity(ctx Context, ordinal, handles int, gdr bool) (int64, error) { return 0, unsupported() }
func BlockCreate(ctx Context, ordinal, handles int, gdr bool, bytes int64) (Block, error) {
	return Block{}, unsupported()
}
func BlockFree(ctx Context, b Block) error                { return unsupported() }
func BlockAccess(ctx Context, b Block, ordinal int) error { return unsupported() }
func BlockExport(ctx Context, b Block) (int, error)       { return 0, unsupported() }
func BlockExportFabric(ctx Context, b Block) (handle [64]byte, err error) {
	err = unsupported()
	return
}
func BlockImport(ctx Context, ordinal, fd int, bytes int64) (Block, error) {
	return Block{}, unsupported()
}
func BlockImportFabric(ctx Context, ordinal int, handle [64]byte, bytes int64) (Block, error) {
	return Block{}, unsupported()
}
func DMABuf(ctx Context, p unsafe.Pointer, bytes int64) (int, error) { return 0, unsupported() }
func FlushWrites(ctx Context) error                                  { return unsupported() }
func PointerAttribute(ctx Context, attribute int, p unsafe.Pointer) (uint64, error) {
	return 0, unsupported()
}
func MemAlloc(ctx Context, bytes int64) (unsafe.Pointer, error) { return nil, unsupported() }
func MemFree(ctx Context, p unsafe.Pointer) error               { return unsupported() }
func HostAlloc(ctx Context, bytes int64) (host, device unsafe.Pointer, err error) {
	err = unsupported()
	return
}
func HostFree(ctx Context, host unsafe.Pointer) error { return unsupported() }
func CopyAsync(ctx Context, dst, src unsafe.Pointer, bytes int64, s Stream) error {
	return unsupported()
}
func CopyRows(ctx Context, dst unsafe.Pointer, dstPitch int64, src unsafe.Pointer, srcPitch, bytes int64, rows int, s Stream) error {
	return unsupported()
}
func HostRegister(ctx Context, host unsafe.Pointer, bytes int64) error { return unsupported() }
func HostUnregister(ctx Context, host unsafe.Pointer) error            { return unsupported() }
func SetAsync(ctx Context, dst unsafe.Pointer, value byte, bytes int64, s Stream) error {
	return unsupported()
}
func StreamCreate(ctx Context, highPriority bool) (Stream, error)             { return 0, unsupported() }
func StreamDestroy(ctx Context, s Stream) error                               { return unsupported() }
func StreamSynchronize(ctx Context, s Stream) error                           { return unsupported() }
func StreamDone(ctx Context, s Stream) (bool, error)                          { return false, unsupported() }
func StreamWrite(ctx Context, s Stream, p unsafe.Pointer, value uint32) error { return unsupported() }
func StreamUntil(ctx Context, s Stream, p unsafe.Pointer, value uint32) error { return unsupported() }
func StreamWait(ctx Context, s Stream, e Event) error                         { return unsupported() }
func EventCreate(ctx Context, timing bool) (Event, error)                     { return 0, unsupported() }
func EventDestroy(ctx Context, e Event) error                                 { return unsupported() }
func EventRecord(ctx Context, e Event, s Stream) error                        { return unsupported() }
func EventSynchronize(ctx Context, e Event) error                             { return unsupported() }
func EventDone(ctx Context, e Event) (bool, error)                            { return false, unsupported() }
func EventElapsed(ctx Context, from, to Event) (float64, error)               { return 0, unsupported() }
func CaptureBegin(ctx Context, s Stream) error                                { return unsupported() }
func CaptureEnd(ctx Context, s Stream) (Graph, error)                         { return 0, unsupported() }
func GraphInstantiate(ctx Context, g Graph) (Exec, error)                     { return 0, unsupported() }
func GraphDestroy(ctx Context, g Graph) error                                 { return unsupported() }
func GraphLaunch(ctx Context, e Exec, s Stream) error                         { return unsupported() }
func ExecDestroy(ctx Context, e Exec) error                                   { return unsupported() }
func StreamCapturing(ctx Context, s Stream) (captured bool, id StreamID, err error) {
	return false, 0, unsupported()
}
func LaunchJoined(ctx Context, launches []Launch, args unsafe.Pointer, stride int, on Stream, others []Stream, before []Event, after Event) error {
	return unsupported()
}

func Prepare(ctx Context, l Launch, args unsafe.Pointer, execs []Exec) (g Graph, node Node, err error) {
	return 0, 0, unsupported()
}

func LaunchAfter(ctx Context, l *Launch, args unsafe.Pointer, on Stream, others []Stream, before []Event, after Event, w Waits, done Event) (id StreamID, captured bool, err error) {
	return 0, false, unsupported()
}
