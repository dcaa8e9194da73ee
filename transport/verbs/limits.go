package verbs

// Limits are what a device has in all, for all its users together.
type Limits struct {
	MaxQP  int // queue pairs
	MaxCQE int // entries of one completion queue
	MaxMR  int // memory regions
}
