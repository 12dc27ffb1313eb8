#!/usr/bin/env bash
# Checks and measures burn-amp on this machine's GPU, then PyTorch, and prints one set of tables.
#
#   OUT=results   where CSV files and the chart go
#   LIMIT=470     seconds for everything
#   PARTS=check,bandwidth,matmul,train
#   BATCH=8       sequences of 1024 tokens
#   ARGS=         more arguments, as --quick
#   WORK=         where compiled kernels are kept for the next run
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-results}
limit=${LIMIT:-470}
parts=${PARTS:-check,bandwidth,matmul,train}
batch=${BATCH:-8}
SECONDS=0
left() { echo $((limit - SECONDS)); }

mkdir -p "$out"
out=$(cd "$out" && pwd)

# CUDA's headers and its run-time compiler, from the first place that has both.
has_cuda() {
    [[ -e $1/include/cuda_fp16.h ]] && [[ -n $(nvrtc_in "$1") ]]
}

# Folders with the compiler's libraries; those of a toolkit lie below targets/.
nvrtc_in() {
    find -L "$1" -maxdepth 4 -name 'libnvrtc*.so*' -printf '%h\n' 2>/dev/null | sort -u
}

wheels() {
    python3 - <<'PYTHON' 2>/dev/null
import glob, os, site, sys

folders = set(sys.path) | set(site.getsitepackages()) | {site.getusersitepackages()}
for folder in folders:
    for path in sorted(glob.glob(os.path.join(folder, "nvidia", "cu1[0-9]")), reverse=True):
        print(path)
PYTHON
}

cuda=
while read -r folder; do
    if [[ -n $folder ]] && has_cuda "$folder"; then
        cuda=$folder
        break
    fi
done < <(
    echo "${CUDA_PATH:-}"
    echo /usr/local/cuda
    echo /opt/cuda
    compgen -G '/usr/local/cuda-*'
    wheels
)
if [[ -z $cuda ]]; then
    echo "neither CUDA_PATH nor the usual places hold CUDA's headers and libnvrtc" >&2
    echo "a pip-installed nvidia-cuda-nvrtc with nvidia-cuda-runtime, -crt and -cccl (13.0) will do" >&2
    exit 2
fi
export CUDA_PATH=$cuda
# The compiler loads a second library, which it finds by this path only.
libraries=$(nvrtc_in "$cuda" | grep -v stubs | paste -sd:)
for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
    [[ -d $folder ]] && libraries+=:$folder
done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

echo "CUDA: $CUDA_PATH"
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv 2>/dev/null
lscpu 2>/dev/null | grep -E '^(Model name|CPU\(s\))'

# Compiled kernels and what was tuned are kept here, so that a second run begins with them.
work=${WORK:-${TMPDIR:-/tmp}/burn-amp-gpu-$(cksum <"$here/burn-amp-gpu" | cut -d' ' -f1)}
mkdir -p "$work" && cd "$work" || exit 2
cat >cubecl.toml <<'TOML'
[compilation]
cache = "local"

[autotune]
cache = "local"
TOML

has_torch=
if timeout 60 python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    has_torch=1
fi
# PyTorch needs about a minute and a half for what it is asked.
for_torch=$((${has_torch:-0} ? 90 : 0))

# Seconds of a part; what one does not need is left to the next. Each is a process of its own, so that
# one that hangs costs no more than its own time.
share() {
    case $1 in
    check) echo 90 ;;
    bandwidth) echo 35 ;;
    train) echo 170 ;;
    *) echo 600 ;;
    esac
}

status=0
for part in check bandwidth train matmul; do
    [[ ,$parts, == *,$part,* ]] || continue
    budget=$(($(left) - for_torch - 20))
    [[ $parts == "$part" || $(share $part) -gt $budget ]] || budget=$(share $part)
    if [[ $budget -lt 10 ]]; then
        echo "$part: left out for lack of time"
        continue
    fi
    echo "== $part, $budget s"
    timeout --kill-after=5 $((budget + 10)) "$here/burn-amp-gpu" all --parts "$part" \
        --out "$out" --budget "$budget" --batch "$batch" ${ARGS:-} >/dev/null
    code=$?
    [[ $code -eq 124 || $code -eq 137 ]] && echo "$part: cut short; what it had measured is kept"
    [[ $code -ne 0 ]] && status=$code
    echo "$part: status $code after $SECONDS s"
done

if [[ -n $has_torch && $(left) -gt 25 ]]; then
    timeout --kill-after=5 $(($(left) - 10)) python3 "$here/torch_reference.py" \
        --out "$out" --batch "$batch" --budget $(($(left) - 15)) --parts "$parts" ||
        echo "PyTorch: status $? after $SECONDS s"
elif [[ -z $has_torch ]]; then
    echo "PyTorch with a GPU is not installed here: its figures are left out"
fi
timeout 10 "$here/burn-amp-gpu" report --out "$out" | tee "$out/report.txt"
echo "done after $SECONDS s; the files are in $out"
exit $status
