package cuda

var PTX = ptx

// KernelNames returns the names of all kernels that can be asked for, each once.
func KernelNames() []string {
	seen := map[string]bool{}
	var names []string
	for k := range Kernel(numKernels) {
		if n := k.name(); k.exists() && !seen[n] {
			seen[n] = true
			names = append(names, n)
		}
	}
	return names
}
