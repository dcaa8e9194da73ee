package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gccl-project/gccl/comm"
	"github.com/gccl-project/gccl/comm/settings"
	"github.com/gccl-project/gccl/topology"
	"github.com/gccl-project/gccl/topology/doctor"
	"github.com/gccl-project/gccl/transport/verbs"
)

func doctorCommand() *cobra.Command {
	var root, against, file string
	var asJSON, all bool
	var world int
	c := &cobra.Command{
		Use:   "doctor [--json] [--root DIR] [--against HOST_REPORT.json] [--plan N]",
		Short: "Say what is wrong with this host, why it matters and what mends it",
		Long: `Say what is wrong with this host for collective communication: limits, shared memory, interfaces, RDMA ports and their GIDs, GPUs
and the way between them and the network, each with why it matters and the command or setting that mends it.

  fail     something that gccl would use doesn't work
  warn     it works, slowly or not for long
  unknown  it could not be read, with the reason
  info     good to know
  ok       shown with --all and --json

Exit status: 0, 1 if something is "fail", 2 if the command line, the settings or a file that they name make no sense. It changes nothing and needs no rights;
some things only root may read.

Settings count as gccl config prints them: GCCL_TRANSPORT, GCCL_SHM_DIR, GCCL_TOPO_FILE, GCCL_TOPO_DUMP_FILE, GCCL_RECORDER, GCCL_SOCKET_IFNAME, GCCL_PORT_RANGE, GCCL_RDMA, GCCL_RDMA_DEVICE,
GCCL_GID_INDEX and, with --plan, GCCL_QP_COUNT; so does GCCL_SECRET_FILE. The files and directories that they name are tried, without --root.

--plan N adds up what a rank of a job of N takes when it talks to all others, and compares that with the limits: it plans for a job, and has
nothing to do with the plans that collectives are compiled to.`,
		Example: `  gccl doctor
  gccl doctor --json > $(hostname).json
  gccl doctor --against otherhost.json
  gccl doctor --plan 1024`,
		Args: flagsOnly("--against"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			from := settings.Process()
			from.File = file
			_, set, err := comm.LoadConfig(from)
			if err != nil {
				return err
			}
			wants, err := doctorWants(set)
			if err != nil {
				return usageError{err}
			}
			theirs, err := readReport(against)
			if err != nil {
				return usageError{fmt.Errorf("--against %s: %w", against, err)}
			}
			shm := doctor.ShmDir
			if dir := set.Of("shm_dir").Text; dir != "" {
				shm = filepath.Clean(dir)
			}
			report, err := diagnose(root, shm, set, wants)
			if err != nil {
				return usageError{err}
			}
			if world > 0 {
				demand := doctor.DefaultDemand(world)
				if n, err := strconv.Atoi(set.Of("qp_count").Text); err == nil {
					demand.QPsPerPeer = n
				}
				plan, findings := doctor.Estimate(report.Host, report.System, wants, demand, world)
				report.Plan = &plan
				report.Add(findings...)
			}
			if theirs != nil {
				report.Add(doctor.Compare(report, theirs, wants)...)
			}
			write := report.Write
			if !asJSON {
				write = func(w io.Writer) error { return printFindings(w, report, all) }
			}
			if err := write(cmd.OutOrStdout()); err != nil {
				return err
			}
			if report.Summary[doctor.Fail] > 0 {
				return statusError(1)
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&asJSON, "json", false, "print one JSON object with findings and all facts, for programs and for --against")
	f.BoolVar(&all, "all", false, "print also what is ok")
	f.StringVar(&root, "root", "", "look below this `folder`, a copy of another host's /sys, /proc and /dev with its symbolic links, instead of /")
	f.StringVar(&against, "against", "", "compare with another host: the `file` has its gccl doctor --json")
	f.Var(countFlag(&world, "ranks", doctor.MaxWorld), "plan", "estimate what a job of so many `ranks` takes")
	f.StringVar(&file, "file", "", "the configuration `file` (default: what GCCL_CONFIG names)")
	return c
}

// doctorWants takes from the settings what findings depend on. Their values have been checked.
func doctorWants(set *settings.Set) (w doctor.Wants, err error) {
	if w.Interface, err = topology.ParseFilter(set.Of("socket_ifname").Text); err != nil {
		return w, err
	}
	if w.RDMA, err = topology.ParseFilter(set.Of("rdma_device").Text); err != nil {
		return w, err
	}
	if n, err := strconv.Atoi(set.Of("gid_index").Text); err == nil {
		w.GIDIndex = &n
	}
	w.Ports = set.Of("port_range").Text
	if name := set.Of("transport").Text; name != "auto" {
		w.Transport = name
	}
	switch name := set.Of("transport").Text; {
	case name == "shm" || name == "tcp":
		w.NoRDMA = "not used with GCCL_TRANSPORT=" + name
	case name == "verbs":
		w.Software = true
	case set.Of("rdma").Text == "false":
		w.NoRDMA = "not used with GCCL_RDMA=false"
	}
	return w, nil
}

func readReport(name string) (*doctor.Report, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return doctor.ReadReport(f)
}

// diagnose examines the host below root; "" is this host, of which more is known than files say.
func diagnose(root, shm string, set *settings.Set, wants doctor.Wants) (*doctor.Report, error) {
	report := &doctor.Report{Version: doctor.ReportVersion}
	err := discover(root, func(files fs.FS, h *topology.Host) {
		report.Host, report.System = h, doctor.Read(files, h, shm)
	})
	if err != nil {
		return nil, err
	}
	if root == "" {
		live(report.System, shm)
		report.System.RDMALimits = rdmaLimits(report.Host)
		for _, f := range comm.Files(set, os.Getenv, report.Host.Graph()) {
			wants.Files = append(wants.Files, doctor.File(f))
		}
	}
	report.Add(doctor.Examine(report.Host, report.System, wants)...)
	return report, nil
}

// live adds what files don't tell.
func live(s *doctor.System, shm string) {
	if ifaces, err := topology.Interfaces(); err != nil {
		s.Interfaces = topology.Unknown[[]topology.Interface]("%v", err)
	} else {
		s.Interfaces = topology.Known(ifaces)
	}
	var space unix.Statfs_t
	if err := unix.Statfs(shm, &space); err != nil {
		s.ShmFree = topology.Unknown[int64]("%s: %v", shm, err)
	} else {
		s.ShmFree = topology.Known(int64(space.Bavail) * space.Bsize)
	}
	info, err := os.Stat(shm)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err == nil && !info.IsDir():
		err = syscall.ENOTDIR
	case err == nil:
		err = unix.Access(shm, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		s.ShmRefused = fmt.Sprintf("ranks of this user can't make a socket in %s: %v", shm, err)
	}
}

// rdmaLimits asks the devices that files show, if there are any.
func rdmaLimits(h *topology.Host) map[string]topology.RDMALimits {
	devices := h.RDMA.Or(nil)
	if len(devices) == 0 {
		return nil
	}
	limits := map[string]topology.RDMALimits{}
	of, why, err := verbs.DeviceLimits()
	for _, d := range devices {
		l, ok := of[d.Name]
		if !ok {
			unknown := topology.Unknown[int]("%v", cmp.Or(err, why[d.Name], errors.New("libibverbs does not list "+d.Name)))
			limits[d.Name] = topology.RDMALimits{MaxQP: unknown, MaxCQE: unknown, MaxMR: unknown}
			continue
		}
		limits[d.Name] = topology.RDMALimits{MaxQP: topology.Known(l.MaxQP), MaxCQE: topology.Known(l.MaxCQE), MaxMR: topology.Known(l.MaxMR)}
	}
	return limits
}

// printFindings writes findings for people, the worst first.
func printFindings(w io.Writer, r *doctor.Report, all bool) error {
	var b strings.Builder
	var counts []string
	for _, level := range doctor.Levels() {
		if n := r.Summary[level]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, level))
		}
		if level == doctor.OK && !all {
			continue
		}
		for _, f := range r.Findings {
			if f.Level != level {
				continue
			}
			fmt.Fprintf(&b, "%-8s%s: %s\n", strings.ToUpper(string(level)), strings.TrimSpace(f.ID+" "+f.Of), f.Seen)
			if level == doctor.OK {
				continue
			}
			fmt.Fprintf(&b, "        why: %s\n", f.Why)
			if f.Fix != "" {
				fmt.Fprintf(&b, "        fix: %s\n", f.Fix)
			}
		}
	}
	for _, id := range []string{"gpu", "rdma", "transports", "plan_qps", "plan_cq_entries", "plan_pinned_bytes", "plan_open_files"} { // what a host has, and what was asked for, belongs into every summary
		for _, f := range r.Findings {
			if f.ID == id && f.Level == doctor.OK && !all {
				fmt.Fprintf(&b, "%-8s%s: %s\n", "OK", f.ID, f.Seen)
			}
		}
	}
	fmt.Fprintf(&b, "%s\n", strings.Join(counts, ", "))
	_, err := io.WriteString(w, b.String())
	return err
}
