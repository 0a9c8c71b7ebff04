#!/usr/bin/env bash
# That a build for Blackwell multiplies by its tensor cores, which nobody here can run: compiles the kernel that does, and
# looks for the instructions.
#
#   scripts/sm100_check.sh BUILD     BUILD: a folder that `cmake --preset blackwell` configured
#
# In the kernel's machine code where there is cuobjdump; else in its PTX, whose instructions ptxas translates one by one.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly build=${1:?usage: scripts/sm100_check.sh BUILD}
readonly kernel=src/ops/cuda/sm100/grouped_product.cu
text=$(mktemp)
trap 'rm -f "$text"' EXIT

if cuobjdump=$(command -v cuobjdump || command -v /usr/local/cuda/bin/cuobjdump); then
  object=src/ops/CMakeFiles/nmoe_ops_cuda.dir/${kernel#src/ops/}.o
  cmake --build "$build" --target "$object"
  "$cuobjdump" -sass "$build/$object" > "$text"
  # BF16, FP8 with scales, FP4 with scales, scales to tensor memory.
  wanted=(UTCHMMA UTCQMMA UTCOMMA UTCCP)
else
  command=$(python3 - "$build/compile_commands.json" "$kernel" "$text" << 'PYTHON'
import json, re, sys
commands, kernel, target = sys.argv[1:]
[entry] = [e for e in json.load(open(commands)) if e["file"].endswith(kernel)]
print("cd", entry["directory"], "&&", re.sub(r" -c (\S+) -o \S+", rf" -ptx \1 -o {target}", entry["command"]))
PYTHON
)
  bash -c "$command"
  wanted=(tcgen05.mma.cta_group::1.kind::f16
    tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale
    tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale
    tcgen05.cp.cta_group::1.32x128b.warpx4)
fi
for instruction in "${wanted[@]}"; do
  count=$(grep -cF "$instruction" "$text" || true)
  printf '%6d  %s\n' "$count" "$instruction"
  if [[ $count == 0 ]]; then
    printf 'error: no %s in %s, compiled as in %s\n' "$instruction" "$kernel" "$build" >&2
    exit 1
  fi
done
