#!/usr/bin/env bash
# Ranks by MPI: two processes say what one says, bit for bit, and a rank that dies, stops or cannot do its share ends all of
# them, with a line and an exit code. Ranks as threads are tested with everything else; this is about processes.
# Needs mpirun, and clang's library to build (Debian: openmpi-bin libopenmpi-dev libclang-dev).
set -euo pipefail
cd "$(dirname "$0")/.."

command -v mpirun >/dev/null || { echo "skipped: no mpirun"; exit 0; }
target=${CARGO_TARGET_DIR:-target}/mpi
cargo build --release --features mpi --bin octavo --target-dir "$target"
octavo=$target/release/octavo
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ranks() { mpirun -q -n "$1" --oversubscribe --mca mpi_yield_when_idle 1 "${@:2}"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; cat "$work/err" 2>/dev/null || true; exit 1; }

say() { echo "== $*"; }
models=("" reference/models/rnd-llama-Q4_K_M.gguf)
for model in "${models[@]}"; do
  say "the same bits on 2 ranks: ${model:-the built-in model}"
  for command in "logits --top 5 --json" "run --json --logprobs 5 -n 200 --ignore-eos"; do
    # shellcheck disable=SC2086 # a command is words
    "$octavo" $command $model -t 1 -p "1+1=" 2>"$work/err" >"$work/one" || fail "$command: failed"
    # shellcheck disable=SC2086
    ranks 2 "$octavo" $command $model -t 1 -p "1+1=" 2>"$work/err" >"$work/two" || fail "$command: failed on 2 ranks"
    # times are others
    for out in one two; do sed -i -E 's/"[a-z_]*(seconds|per_second|ms)": *[0-9.e+-]+//g' "$work/$out"; done
    cmp "$work/one" "$work/two" || fail "$command: other output"
  done
done

say "a number of ranks that cannot be"
if ranks 3 "$octavo" run -t 1 -p "1+1=" 2>"$work/err" >/dev/null; then fail "3 ranks: expected a refusal"; fi
[[ $(grep -c "octavo: error: .*3 ranks: expected 1 or 2" "$work/err") == 1 ]] || fail "expected one line"

# Starts a long generation, sends rank 1 a signal, and says how it ended.
broken() { # SIGNAL LINE SECONDS
  ranks 2 "$octavo" bench -t 1 -p 0 -n 4000 -r 1000 --no-limits --rank-timeout 3 >/dev/null 2>"$work/err" &
  local mpirun=$! first second begin=$SECONDS code=0
  sleep 3
  mapfile -t pids < <(pgrep -P "$mpirun" -f "$octavo" | sort -n)
  first=${pids[0]} second=${pids[1]}
  begin=$(date +%s%N)
  kill -"$1" "$second"
  wait "$mpirun" || code=$?
  local ms=$((($(date +%s%N) - begin) / 1000000))
  for pid in "$first" "$second"; do
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -0 "$pid" 2>/dev/null && fail "SIG$1: process $pid is left"
  done
  ((code != 0)) || fail "SIG$1: expected an exit code that is not 0"
  ((ms < $3 * 1000)) || fail "SIG$1: took $ms ms"
  [[ -z $2 ]] || grep -q "$2" "$work/err" || fail "SIG$1: expected a line: $2"
  say "SIG$1 to rank 1: code $code after $ms ms"
}
broken KILL "" 10
broken STOP "octavo: error: rank 1 of 2 has not answered for 3 s" 20
