package gpu

import (
	"unsafe"

	"github.com/gccl-project/gccl/kernels"
	"github.com/gccl-project/gccl/kernels/cuda"
)

// A stage is a GPU's memory for a communicator's traffic with other GPUs, which map it: the kernels' words, then rows of LL128 lines
// of even epochs and of odd ones, then slots of FIFOs. Of rows and slots every other GPU has its share.
type stage struct {
	mem kernels.Mem
	d   *cuda.Device // that has it, or has mapped that of another process
}

// Less than 32 MiB a GPU, whatever their number.
const (
	stageLines = 13 << 19 // of one parity: 6 MiB of payload
	stageSlots = 16 << 20
	stageBytes = cuda.StageRows + 2*stageLines + stageSlots
	proofAt    = cuda.StageRows - 128 // where a stage has what Import looks for
)

// newStage makes one of so many bytes, of which the first ones, and those from stageBytes on, are zero once the stream has come so far.
func newStage(d *cuda.Device, on cuda.Stream, bytes, zero int64) (stage, error) {
	m, err := d.Alloc(bytes)
	if err != nil {
		return stage{}, err
	}
	err = d.Fill(on, m.Ptr, 0, zero)
	if rest := bytes - stageBytes; err == nil && rest > 0 {
		err = d.Fill(on, unsafe.Add(m.Ptr, stageBytes), 0, rest)
	}
	return stage{m, d}, err
}

func (s *stage) free() error {
	if s.mem.Ptr == nil {
		return nil
	}
	m := s.mem
	s.mem.Ptr = nil
	return s.d.Free(m)
}

// row is a row at a site's stage, by its number and that of the other one, who stores there.
func (s *stage) row(share, at int64, site, other int) unsafe.Pointer {
	if other > site {
		other--
	}
	return unsafe.Add(s.mem.Ptr, cuda.StageRows+int64(other)*share+at)
}
