package comm

// PartsAnyway has ranks of this process be as if in processes of their own, with GPUs that are linked, until the test is over.
func PartsAnyway(t interface{ Cleanup(func()) }, yes bool) {
	partsAnyway = yes
	t.Cleanup(func() { partsAnyway = false })
}
