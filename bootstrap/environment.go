package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// Env is what a launcher says about this process, through environment variables. The zero Env says nothing.
type Env struct {
	Rank      int
	World     int // 0: no launcher that we know numbered this process
	LocalRank int // on this host; -1 if it was not given
	ID        ID  // zero in a world of one
	Roots     []string
	Serve     bool   // rank 0 serves the root; false when GCCL_UNIQUE_ID names one that is served already
	Launcher  string // "gccl" or "torchrun": whose variables gave the rank
	// Unproven: no secret was given, so ID is one that anybody who knows the job's name can make.
	Unproven bool
}

// torchPorts is how many ports above MASTER_PORT, which torchrun's store listens at, may be the root's.
const torchPorts = 16

// Environment reads the variables through getenv, which is os.Getenv for most; an empty variable is one that is not set.
//
//	GCCL_RANK, GCCL_WORLD_SIZE, GCCL_LOCAL_RANK   or torchrun's RANK, WORLD_SIZE, LOCAL_RANK
//	GCCL_UNIQUE_ID                               the text of an id whose root is served by somebody, or else
//	GCCL_ROOT=host:port                          where rank 0 serves the root, or else
//	MASTER_ADDR, MASTER_PORT                     torchrun's: the root is at the first free port of MASTER_PORT+1 … +16
//	GCCL_SECRET or GCCL_SECRET_FILE              proves ranks to each other; to go with GCCL_ROOT or MASTER_ADDR
//	GCCL_JOB_ID                                  without a secret: keeps jobs apart
//	TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT   likewise, under torchrun
//
// Variables that are wrong or go against each other are an error that names them and their values. It reads no file but
// GCCL_SECRET_FILE.
func Environment(getenv func(string) string) (Env, error) {
	e, err := environment(variables{getenv})
	if err != nil {
		return Env{}, fmt.Errorf("environment: %w", err)
	}
	return e, nil
}

// variables reads numbers and pairs out of the environment.
type variables struct{ get func(string) string }

func (v variables) number(name string, low, high int) (int, error) {
	text := v.get(name)
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%s=%q: want a number from %d to %d", name, text, low, high)
	}
	return n, nil
}

// both reports whether two variables that only make sense together are set.
func (v variables) both(a, b string) (bool, error) {
	x, y := v.get(a), v.get(b)
	switch {
	case x != "" && y == "":
		return false, fmt.Errorf("%s=%q is set and %s is not; they go together", a, x, b)
	case x == "" && y != "":
		return false, fmt.Errorf("%s=%q is set and %s is not; they go together", b, y, a)
	}
	return x != "", nil
}

func environment(v variables) (Env, error) {
	var e Env
	var err error
	names := [3]string{"GCCL_RANK", "GCCL_WORLD_SIZE", "GCCL_LOCAL_RANK"}
	e.Launcher = "gccl"
	found, err := v.both(names[0], names[1])
	if err == nil && !found {
		names = [3]string{"RANK", "WORLD_SIZE", "LOCAL_RANK"}
		e.Launcher = "torchrun"
		found, err = v.both(names[0], names[1])
	}
	if err != nil {
		return Env{}, err
	}
	if !found {
		for _, name := range []string{"GCCL_UNIQUE_ID", "GCCL_ROOT"} {
			if text := v.get(name); text != "" {
				if name == "GCCL_UNIQUE_ID" {
					text = "…" // holds the secret
				}
				return Env{}, fmt.Errorf("%s=%s is set, but neither GCCL_RANK and GCCL_WORLD_SIZE nor RANK and WORLD_SIZE are", name, text)
			}
		}
		return Env{LocalRank: -1}, nil
	}
	if e.World, err = v.number(names[1], 1, maxWorld); err != nil {
		return Env{}, err
	}
	if e.Rank, err = v.number(names[0], 0, e.World-1); err != nil {
		return Env{}, fmt.Errorf("%w, as %s=%d", err, names[1], e.World)
	}
	e.LocalRank = -1
	for _, name := range []string{"GCCL_LOCAL_RANK", names[2]} {
		if v.get(name) == "" {
			continue
		}
		if e.LocalRank, err = v.number(name, 0, e.World-1); err != nil {
			return Env{}, fmt.Errorf("%w, as %s=%d", err, names[1], e.World)
		}
		break
	}
	if e.World == 1 {
		return e, nil
	}
	return e, e.meet(v)
}

// meet fills in where the ranks meet.
func (e *Env) meet(v variables) error {
	id, root, master := v.get("GCCL_UNIQUE_ID"), v.get("GCCL_ROOT"), v.get("MASTER_ADDR")
	var err error
	switch {
	case id != "" && root != "":
		return fmt.Errorf("GCCL_UNIQUE_ID and GCCL_ROOT=%q are both set; want one of them", root)
	case id != "":
		if e.ID, err = ParseID(strings.TrimSpace(id)); err != nil {
			return fmt.Errorf("GCCL_UNIQUE_ID: %w", err)
		}
		e.Unproven = !e.ID.Authenticated()
		return nil
	case root != "":
		if _, _, err := splitRoot(root); err != nil {
			return fmt.Errorf("GCCL_ROOT: %w", err)
		}
		e.Roots = []string{root}
		return e.derive(v, "gccl root", v.get("GCCL_JOB_ID"))
	case master != "" || v.get("MASTER_PORT") != "":
		if _, err := v.both("MASTER_ADDR", "MASTER_PORT"); err != nil {
			return err
		}
		port, err := v.number("MASTER_PORT", 1, 65535)
		if err != nil {
			return err
		}
		host := strings.Trim(master, "[]")
		for p := port + 1; p <= min(port+torchPorts, 65535); p++ {
			e.Roots = append(e.Roots, net.JoinHostPort(host, strconv.Itoa(p)))
		}
		if len(e.Roots) == 0 {
			return fmt.Errorf("MASTER_PORT=%d leaves no port above it for the root; set GCCL_ROOT=host:port", port)
		}
		return e.derive(v, "gccl torchrun root", v.get("TORCHELASTIC_RUN_ID"), v.get("TORCHELASTIC_RESTART_COUNT"),
			v.get("GCCL_JOB_ID"), strconv.Itoa(e.World), strconv.Itoa(port))
	}
	return fmt.Errorf("a world of %d ranks has no place to meet: set GCCL_ROOT=host:port (an address of rank 0), GCCL_UNIQUE_ID, or MASTER_ADDR and MASTER_PORT", e.World)
}

func (e *Env) derive(v variables, labels ...string) (err error) {
	secret, err := v.secret()
	if err != nil {
		return err
	}
	e.Serve, e.Unproven = true, secret == ""
	e.ID, err = DeriveID(e.Roots[0], secret, labels...)
	return err
}

func (v variables) secret() (string, error) {
	text, file := v.get("GCCL_SECRET"), v.get("GCCL_SECRET_FILE")
	switch {
	case text != "" && file != "":
		return "", fmt.Errorf("GCCL_SECRET and GCCL_SECRET_FILE=%q are both set; want one of them", file)
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("GCCL_SECRET_FILE: %w", err)
		}
		if text = strings.TrimSpace(string(b)); text == "" {
			return "", fmt.Errorf("GCCL_SECRET_FILE=%q: %w", file, errors.New("the file is empty"))
		}
	}
	return strings.TrimSpace(text), nil
}

// Config returns the configuration to [Join] with; the rest of it is the caller's.
func (e Env) Config() Config {
	return Config{Rank: e.Rank, World: e.World, ID: e.ID, Roots: e.Roots, Serve: e.Serve}
}

// PromisedWorld returns how many processes a launcher says that it started (mpirun, srun, PMI, MVAPICH), and in which variable:
// a program that runs alone under one which promised more was probably not told how to meet the others. 0 means that no launcher
// says anything. A value that is no positive number is an error.
func PromisedWorld(getenv func(string) string) (size int, variable string, err error) {
	v := variables{getenv}
	for _, name := range []string{"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"} {
		if getenv(name) == "" {
			continue
		}
		n, err := v.number(name, 1, maxWorld)
		if err != nil {
			return 0, name, fmt.Errorf("environment: %w", err)
		}
		return n, name, nil
	}
	return 0, "", nil
}
