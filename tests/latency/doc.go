// Package latency measures short messages between two processes, each on a processor of its own, against the least that
// two processors can do: one line of memory each way and nothing else. The two take turns in slices of some
// milliseconds, since the time that a line takes between two processors of a shared host changes within seconds. Nothing here
// is for import.
//
//	go test -run '^$' -bench . -benchtime 1x ./tests/latency
package latency
