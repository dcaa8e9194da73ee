//go:build linux

package cluster

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Confine makes the kernel refuse this process, in all its threads, and all that it starts from now on to look into other processes,
// as a container's profile does: process_vm_readv and the like fail with EPERM. It cannot be taken back. An error says that the
// filter could not be set, or that it does nothing.
func Confine() error {
	if err := Refuse(unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PTRACE, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD); err != nil {
		return err
	}
	var word [8]byte
	here := []unix.Iovec{{Base: &word[0], Len: 8}}
	there := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&word)), Len: 8}}
	if _, err := unix.ProcessVMReadv(os.Getpid(), here, there, 0); err != unix.EPERM {
		return fmt.Errorf("process_vm_readv says %v under the filter, want EPERM: the filter does nothing", err)
	}
	return nil
}

// Refuse does so for any system calls.
func Refuse(calls ...uint32) error {
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	for i, nr := range calls {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jt: uint8(len(calls) - i)})
	}
	const allow, refuse = 0x7fff0000, 0x00050000
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: allow}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: refuse | uint32(unix.EPERM)})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges, without which a filter of system calls is not set: %w", err)
	}
	const setFilter, allThreads = 1, 1
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, setFilter, allThreads, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		return fmt.Errorf("set a filter of system calls with seccomp: %w", errno)
	}
	return nil
}
