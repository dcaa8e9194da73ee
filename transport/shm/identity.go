package shm

import "fmt"

// Identity says which host a rank is on. Strings are kept and compared whole: a
// hash of a host name has clashed before.
type Identity struct {
	HostID    string // the user's word for the host (GCCL_HOSTID); overrules BootID
	BootID    string // /proc/sys/kernel/random/boot_id: one per boot of one kernel
	HostName  string // for people; differs between containers of one host
	ShmDevice string // device of the directory where ranks meet, "major:minor"
}

// SameHost reports whether a and b may share memory, and the reason in words
// when not. Yes means that trying is worth while; only Endpoint.Reach, which
// looks for the peer's nonce, proves it.
func SameHost(a, b Identity) (bool, string) {
	switch {
	case a.HostID != "" || b.HostID != "":
		if a.HostID != b.HostID {
			return false, fmt.Sprintf("other host (host id %q here, %q there)", a.HostID, b.HostID)
		}
	case a.BootID == "" || b.BootID == "":
		return false, fmt.Sprintf("host unknown (boot id %q here, %q there; set GCCL_HOSTID to the same word on ranks that share a host)", a.BootID, b.BootID)
	case a.BootID != b.BootID:
		return false, fmt.Sprintf("other host (boot id %s, host name %q; here %s, %q)", b.BootID, b.HostName, a.BootID, a.HostName)
	}
	return true, ""
}
