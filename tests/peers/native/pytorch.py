# PyTorch's collectives by Gloo, timed: pytorch.py RANK RANKS DIRECTORY LIBRARY KIND PAGE CALLS WARM SIZE…
# The ranks meet by a file in the directory; the library is page.c. A call gets addresses: tensors over them are made once.
import ctypes
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

rank, ranks, directory, library, kind, page, calls, warm, sizes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5], sys.argv[6], int(sys.argv[7]), int(sys.argv[8]), sys.argv[9:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + os.path.join(directory, "store"), rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
tensors = {}


def tensor(address, n):
    if (address, n) not in tensors:
        tensors[address, n] = torch.frombuffer((ctypes.c_float * n).from_address(address), dtype=torch.float32)
    return tensors[address, n]


def blocks(t):
    return list(t.chunk(ranks))


def all_reduce(dst, src, n):
    d = tensor(dst, n)
    d.copy_(tensor(src, n))  # it has only this in place
    dist.all_reduce(d)


def all_gather(dst, src, n):
    dist.all_gather(blocks(tensor(dst, n)), tensor(src, n // ranks))


def reduce_scatter(dst, src, n):
    dist.reduce_scatter_tensor(tensor(dst, n // ranks), tensor(src, n))


def broadcast(dst, src, n):
    dist.broadcast(tensor(dst, n), 0)


def alltoall(dst, src, n):
    dist.all_to_all_single(tensor(dst, n), tensor(src, n))


def sendrecv(dst, src, n):
    sent = dist.isend(tensor(src, n), (rank + 1) % ranks)
    dist.recv(tensor(dst, n), (rank - 1) % ranks)
    sent.wait()


collective = globals()[kind]


def call(_, dst, src, n):
    try:
        collective(dst, src, n)
    except BaseException as e:  # none may pass through C
        print(e, file=sys.stderr, flush=True)
        os._exit(1)


operation = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
words = (ctypes.c_char_p * len(sizes))(*(s.encode() for s in sizes))
sys.exit(ctypes.CDLL(library).page_run(rank, ranks, page.encode(), kind.encode(), operation(call), calls, warm, len(sizes), words))
