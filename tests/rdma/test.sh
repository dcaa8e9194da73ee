#!/usr/bin/env bash
# test.sh [FLAG...]: runs the tests that need RDMA devices, with these flags of test binaries: here, where there are devices, else in a
# virtual machine that has some, booted once for all of them. With GCCL_TEST_FULL=1 all of them, which takes hours, else pairs.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages="transport/verbs/internal/ibv transport/verbs tests/e2e"
binaries=build/rdma-tests
mkdir -p "$binaries"
for p in $packages; do ${GO:-go} test -c -o "$binaries/$(basename "$p").test" "./$p"; done
${GO:-go} build -o "$binaries/gccl" ./cmd/gccl
limit=1200
[ -z "${GCCL_TEST_FULL:-}" ] || limit=43200
# Of the end-to-end tests those over RDMA devices.
run='status=0
for p in '"$packages"'; do
	only=; [ $p != tests/e2e ] || only=-test.run=OverRDMA
	(cd "$p" && exec "$0/$(basename "$p").test" -test.timeout '"$limit"'s $only "$@") && echo "ok $p" || { echo "FAIL $p"; status=1; }
done
GCCL_TRANSPORT=verbs "$0/gccl" bench all_reduce -b 8 -e 64K -f 16 -n 5 && echo "ok bench" || { echo "FAIL bench"; status=1; }
for link in write_bw write_lat send_lat read_bw atomic_lat; do
	"$0/gccl" bench $link -n 200 -w 0 && echo "ok $link" || { echo "FAIL $link"; status=1; }
done
exit $status'
export GCCL_REQUIRE=verbs
if [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
	bash -c "$run" "$PWD/$binaries" "$@"
else
	tests/rdma/vm.sh --timeout "$limit" bash -c "$run" "$PWD/$binaries" "$@"
fi
