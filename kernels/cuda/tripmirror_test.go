package cuda

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The structs and words here and in trip.h are the same.
func TestTripMirrorsC(t *testing.T) {
	text, err := os.ReadFile("trip.h")
	if os.IsNotExist(err) {
		t.Skip("the binary was moved away from its sources")
	}
	require.NoError(t, err)
	for name, value := range map[string]int{"MAX_PARTS": MaxParts, "TRIP_THREADS": tripThreads, "TOLD_AT": TripTold, "ID_AT": TripID, "DONE_AT": TripDone, "STOP_AT": TripStop} {
		m := regexp.MustCompile(name + ` = (\d+)`).FindSubmatch(text)
		require.NotNil(t, m, name)
		require.Equal(t, strconv.Itoa(value), string(m[1]), name)
	}
	require.EqualValues(t, 24, unsafe.Offsetof(tripPart{}.bytes))
	require.EqualValues(t, 40, unsafe.Sizeof(tripPart{}))
	require.EqualValues(t, 24, unsafe.Offsetof(tripArgs{}.part))
}
