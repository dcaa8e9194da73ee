#!/bin/sh
# Runs a command on the processor of its rank of an MPI job: pin.sh CPU,CPU,… COMMAND…
cpus=$1
shift
exec taskset -c "$(echo "$cpus" | cut -d, -f$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} + 1)))" "$@"
