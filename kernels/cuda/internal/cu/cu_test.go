package cu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Without the library, every start says which one is missing; with it, the driver is there, or says by number what is not.
func TestLoad(t *testing.T) {
	err := Load()
	require.Equal(t, err, Load(), "once for the process")
	var failed *Error
	switch {
	case err == nil:
		v, err := DriverVersion()
		require.NoError(t, err)
		require.Greater(t, v, 11000)
		_, err = DeviceName(1 << 20)
		require.ErrorContains(t, err, "CUDA_ERROR_INVALID_DEVICE (101)")
	case errors.As(err, &failed):
		require.Equal(t, "cuInit", failed.Call)
	default:
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, Library)
	}
}

func TestErrorKeepsTheNumber(t *testing.T) {
	err := fmt.Errorf("device 3: %w", &Error{Call: "cuMemCreate", Result: OutOfMemory})
	var r Result
	require.ErrorAs(t, err, &r)
	require.Equal(t, OutOfMemory, r)
	require.ErrorIs(t, err, OutOfMemory)
	require.NotErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "cuMemCreate")
	for _, r := range []Result{NotSupported, NoDevice, missing} {
		require.ErrorIs(t, &Error{Call: "cuX", Result: r}, errors.ErrUnsupported)
	}
	// A fabric that is not ready is a machine to mend, not one without GPUs.
	require.NotErrorIs(t, SystemNotReady, errors.ErrUnsupported)
	require.EqualError(t, SystemNotReady, "CUDA_ERROR_SYSTEM_NOT_READY (802): the NVSwitch fabric is not ready: start nvidia-fabricmanager of the driver's version")
}

func nameOfFirst() (name string, err error) {
	if err = Load(); err == nil {
		name, err = DeviceName(0)
	}
	return name, err
}

// TestUC72_FabricNotReady: a driver that says 802 is a machine whose fabric manager has to be started, and not one without GPUs.
func TestUC72_FabricNotReady(t *testing.T) {
	const fails = "GCCL_EMULATOR_INIT"
	if os.Getenv(fails) != "" {
		err := Load()
		require.ErrorIs(t, err, SystemNotReady)
		require.NotErrorIs(t, err, errors.ErrUnsupported)
		require.EqualError(t, err, "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802): the NVSwitch fabric is not ready: start nvidia-fabricmanager of the driver's version")
		return
	}
	if name, err := nameOfFirst(); err != nil || name != "emulated GPU" {
		t.Skip("only an emulated driver fails when asked; make test-gpu has one")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestUC72_FabricNotReady$", "-test.v")
	cmd.Env = append(os.Environ(), fails+"=802")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS")
}
