//go:build !linux

package bootstrap

func portHolder(uint16) string { return "" }
