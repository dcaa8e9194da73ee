package cpu

// accelerated returns the implementations beside the generic one. A file with assembly declares its
// own under its build tag, and this one then takes the complement of that tag.
func accelerated() []Implementation { return nil }
