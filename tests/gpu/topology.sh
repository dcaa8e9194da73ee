#!/bin/sh
# NCCL reads the topology that gccl writes, and gccl the one that NCCL writes back, on a machine with a GPU. It needs the gccl binary
# beside it, python3, and libnccl.so.2: NCCL_LIBRARY, or the one that comes with PyTorch.
# usage: topology.sh OUTPUT-FOLDER
cd "$(dirname "$0")" || exit 1
out=${1:?usage: topology.sh OUTPUT-FOLDER}
set -e
./gccl topo --format xml >"$out/gccl.xml"
NCCL_NVLS_ENABLE=0 NCCL_TOPO_FILE="$out/gccl.xml" NCCL_TOPO_DUMP_FILE="$out/nccl.xml" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH \
	timeout 120 python3 - >"$out/nccl.log" 2>&1 <<'EOF' || { tail -20 "$out/nccl.log"; exit 1; }
import ctypes, glob, os, sys
library = os.environ.get("NCCL_LIBRARY")
if not library:
    import torch
    found = glob.glob(os.path.join(os.path.dirname(torch.__file__), "..", "nvidia", "*", "lib", "libnccl.so.2"))
    library = found[0] if found else "libnccl.so.2"
nccl, cuda = ctypes.CDLL(library), ctypes.CDLL("libcuda.so.1")
gpus = ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(gpus)) == 0
comms = (ctypes.c_void_p * gpus.value)()
nccl.ncclGetErrorString.restype = ctypes.c_char_p
status = nccl.ncclCommInitAll(comms, gpus, None)
print("communicators over", gpus.value, "GPUs:", nccl.ncclGetErrorString(status).decode(), flush=True)
for c in comms:
    nccl.ncclCommDestroy(ctypes.c_void_p(c))
sys.exit(status)
EOF
grep 'communicators over' "$out/nccl.log"
# What NCCL leaves of the file after it has cut off what it has no use for: the same GPUs at the same places.
gpus() { ./gccl topo --load "$1" --format json | grep -o '"target": "[^"]*"\|"GPU"' | sort | uniq -c; }
gpus "$out/gccl.xml" >"$out/before"
gpus "$out/nccl.xml" >"$out/after"
diff "$out/before" "$out/after" && echo "NCCL kept GPUs and NVLinks as gccl wrote them"
