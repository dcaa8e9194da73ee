package tune

// line is a time that depends on the bytes p of a piece: ns + perByte·p.
//
// Products are converted before they are added, which forbids the compiler to fuse the two: on
// processors that can, the sum would be rounded otherwise, and ranks could choose differently.
type line struct{ ns, perByte float64 }

func (l line) at(p int) float64 { return l.ns + float64(l.perByte*float64(p)) }

func (l line) plus(o line) line { return line{l.ns + o.ns, l.perByte + o.perByte} }

func (l line) minus(o line) line { return line{l.ns - o.ns, l.perByte - o.perByte} }

func (l line) times(k int) line {
	return line{float64(l.ns * float64(k)), float64(l.perByte * float64(k))}
}

// max is above both: the larger constant and the larger slope.
func (l line) max(o line) line { return line{max(l.ns, o.ns), max(l.perByte, o.perByte)} }
