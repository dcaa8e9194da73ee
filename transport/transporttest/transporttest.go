// Package transporttest is the contract of package transport as tests.
//
// Every transport runs the same suite over its own endpoints:
//
//	func TestContract(t *testing.T) {
//		transporttest.Run(t, func(tb testing.TB, o []transport.Options) []transport.Endpoint {
//			... open len(o) endpoints that can reach one another ...
//		})
//	}
//
// and the same benchmarks with [Bench]. What is optional (Allocator, Awaiter,
// Bell, Pollable) is tested where the endpoint has it and skipped, saying so,
// where it has not.
//
// The suite drives several endpoints from one goroutine unless a test says
// otherwise. Nothing in it waits for ever: a wait that takes longer than a
// minute fails and says what was waited for.
package transporttest

import (
	"testing"

	"github.com/gccl-project/gccl/transport"
)

// Provider opens one endpoint for each of the options, as ranks 0, 1, … of one
// job that can all reach one another. It fails tb if it cannot. The suite closes
// the endpoints; a provider that holds more frees it with tb.Cleanup.
type Provider func(tb testing.TB, options []transport.Options) []transport.Endpoint

// Run checks the contract.
func Run(t *testing.T, open Provider) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Provider)
	}{
		{"Sizes", testSizes},
		{"Values", testValues},
		{"MixedReceives", testMixedReceives},
		{"ZeroLength", testZeroLength},
		{"ManyStreams", testManyStreams},
		{"StalledStream", testStalledStream},
		{"BackPressure", testBackPressure},
		{"Sent", testSent},
		{"BothWaysOneGoroutine", testBothWays},
		{"SameValues", testSameValues},
		{"Channels", testChannels},
		{"ConnectOrders", testConnectOrders},
		{"Met", testMet},
		{"ConnectSimultaneously", testConnectSimultaneously},
		{"FullMesh", testFullMesh},
		{"FullMeshGoroutines", testFullMeshGoroutines},
		{"OptionsDiffer", testOptionsDiffer},
		{"WrongTag", testWrongTag},
		{"WrongLength", testWrongLength},
		{"TooLong", testTooLong},
		{"ConnClosed", testConnClosed},
		{"Left", testLeft},
		{"Leave", testLeave},
		{"LeaveMany", testLeaveMany},
		{"EndpointClosed", testEndpointClosed},
		{"ClosedWhileSending", testClosedWhileSending},
		{"CloseOwn", testCloseOwn},
		{"CloseTwice", testCloseTwice},
		{"FirstSeq", testFirstSeq},
		{"HookDrop", testHookDrop},
		{"HookTwice", testHookTwice},
		{"HookReset", testHookReset},
		{"HookDelay", testHookDelay},
		{"HookFlip", testHookFlip},
		{"HookFrames", testHookFrames},
		{"Checksum", testChecksum},
		{"Stats", testStats},
		{"Allocator", testAllocator},
		{"Lending", testLending},
		{"TakenBack", testTakenBack},
		{"Overwritten", testOverwritten},
		{"Awaiter", testAwaiter},
		{"Stager", testStager},
		{"Lander", testLander},
		{"Sleepers", testSleepers},
		{"NothingLeft", testNothingLeft},
		{"NoAllocations", testNoAllocations},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open) })
	}
}
