//go:build !linux || !cgo

package nvml

import "fmt"

func read(library string) ([]device, error) {
	return nil, fmt.Errorf("no NVML: this build cannot open %s: it was made without cgo or not for Linux", library)
}
