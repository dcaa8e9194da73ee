package transport

import "fmt"

// Bounds of Options.
const (
	MaxStreams  = 64
	MinMessage  = 64
	MostMessage = 64 << 20
)

// Validate reports the first field that is out of its bounds, with its value and
// what is accepted.
func (o Options) Validate() error {
	if o.Streams < 1 || o.Streams > MaxStreams {
		return fmt.Errorf("transport options: Streams is %d, want 1 to %d", o.Streams, MaxStreams)
	}
	if o.MaxMessage < MinMessage || o.MaxMessage > MostMessage {
		return fmt.Errorf("transport options: MaxMessage is %d bytes, want %d to %d", o.MaxMessage, MinMessage, MostMessage)
	}
	return nil
}
