#!/usr/bin/env bash
# Ranks by MPI: two processes say what one says, bit for bit, and a rank that dies, stops, panics
# or differs ends all of them, with a line and an exit code. Ranks as threads are tested with
# everything else; this is about processes.
#
# Needs mpirun, and clang's library to build (Debian: openmpi-bin libopenmpi-dev libclang-dev).
# What is built is kept as target/ranks/octavo; a program that is there already can be given:
#
#     tools/ranks.sh [PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/.."

octavo=${1:-}
if [[ -z $octavo ]]; then
  # dependencies are those of every other build; the program is moved out of the way of the others
  target=${CARGO_TARGET_DIR:-target}
  cargo build --release --features rank-faults --bin octavo
  mkdir -p "$target/ranks"
  mv "$target/release/octavo" "$target/ranks/octavo"
  octavo=$target/ranks/octavo
fi
octavo=$(realpath "$octavo")

# tests of containers are root, and have fewer cores than ranks
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
options=(-q --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
ranks() { mpirun "${options[@]}" -n "$1" "${@:2}"; }

work=$(mktemp -d)
mpirun=
trap '[[ -z $mpirun ]] || kill "$mpirun" 2>/dev/null; rm -rf "$work"' EXIT
say() { printf '== %s\n' "$*"; }
fail() {
  echo "$*"
  sed 's/^/  stderr: /' "$work/err" || true
  exit 1
}

now() { date +%s%3N; }

# No process of the program is left.
expect_none() { # WHAT
  local left=
  for _ in $(seq 50); do
    left=$(pgrep -f "^$octavo " || true)
    [[ -n $left ]] || return 0
    sleep 0.1
  done
  fail "$1: processes are left: $left"
}

# The command has ended with an error, and one line of the program says why.
expect_line() { # WHAT CODE LINE
  (($2 != 0)) || fail "$1: expected an exit code that is not 0"
  (($(grep -cE '^octavo: (internal )?error' "$work/err" || true) == 1)) ||
    fail "$1: expected one line of ours"
  grep -q "^octavo: $3" "$work/err" || fail "$1: expected a line: $3"
  expect_none "$1"
}

# More than a page and a tile of tokens.
text=$(head -c 300 docs/ranks.md)
# All logits of a text, and what is generated, in $1.logits and $1.json.
compute() { # NAME COMMAND...
  local name=$work/$1
  shift
  "$@" logits "${model[@]}" -t 1 -p "$text" --dump "$name.logits" --force >/dev/null &&
    "$@" run "${model[@]}" -t 1 -p "1+1=" -n 200 --ignore-eos --json --logprobs 5 >"$name.json" &&
    # times, memory and who computed differ
    sed -E -i 's/"metrics": *\{[^}]*\}//' "$name.json"
}

same() { # MODEL...
  local what=${1:-the built-in model} begin
  begin=$(now) model=("$@")
  compute one "$octavo" 2>"$work/err" || fail "$what: failed on one"
  compute two ranks 2 "$octavo" 2>"$work/err" || fail "$what: failed on 2 ranks"
  cmp "$work/one.logits" "$work/two.logits" || fail "$what: other logits"
  [[ $(wc -c <"$work/one.json") -gt 20000 ]] || fail "$what: expected 200 tokens"
  cmp "$work/one.json" "$work/two.json" || fail "$what: other text"
  say "the same bits on 2 ranks: $what ($(($(now) - begin)) ms)"
}
same
shared=${OCTAVO_SHARED:-../shared}
for model in reference/models/rnd-llama-Q4_K_M.gguf "$shared"/models/rnd-qwen3-Q8_0.gguf \
  "$shared"/arch/models/{qwen3moe,qwen35,falcon-h1,phi3}-Q4_K_M.gguf; do
  if [[ -f $model ]]; then same "$model"; else say "left out, is not here: $model"; fi
done

code=0
ranks 3 "$octavo" run -t 1 -p "1+1=" 2>"$work/err" >"$work/out" || code=$?
expect_line "3 ranks" $code "error: .*3 ranks: expected 1 or 2, which divide its key heads"
say "3 ranks that cannot be: $(grep error "$work/err")"

# Two programs that differ: of each its folder, itself and its arguments.
pair() { # WHAT LINE FOLDER1 COMMAND1 FOLDER2 COMMAND2
  local code=0
  # shellcheck disable=SC2086
  timeout 60 mpirun "${options[@]}" -n 1 -wdir "$3" $4 : -n 1 -wdir "$5" $6 \
    2>"$work/err" >"$work/out" || code=$?
  expect_line "$1" $code "$2"
  [[ ! -s $work/out ]] || fail "$1: expected nothing on stdout"
  say "$1: code $code: $(grep error "$work/err")"
}
mkdir "$work"/{a,b}
cp reference/models/rnd-llama-Q4_K_M.gguf "$work/a/model.gguf"
run="$octavo run model.gguf -t 1 -n 9 -p 1+1="
pair "no file for rank 1" "error: rank 1 of 2: .*model.gguf" "$work/a" "$run" "$work/b" "$run"
cp reference/models/rnd-qwen2-Q6_K.gguf "$work/b/model.gguf"
pair "another file for rank 1" "error: rank 1 of 2: model.gguf: another model: expected" \
  "$work/a" "$run" "$work/b" "$run"
# the same keys and tensors, but other weights; then fewer
size=$(stat -c %s "$work/a/model.gguf")
head -c $((size - 200000)) "$work/a/model.gguf" >"$work/b/model.gguf"
head -c 200000 /dev/zero >>"$work/b/model.gguf"
pair "other weights for rank 1" "error: rank 1 of 2: model.gguf: another model: expected" \
  "$work/a" "$run" "$work/b" "$run"
head -c $((size - 5000)) "$work/a/model.gguf" >"$work/b/model.gguf"
pair "a truncated file for rank 1" "error: rank 1 of 2: .*model.gguf" \
  "$work/a" "$run" "$work/b" "$run"
pair "other options for rank 1" "error: rank 1 of 2: arguments .*: expected .*, as rank 0" \
  "$work/a" "$run" "$work/a" "$run --seed 3"
pair "another program for rank 1" "error: rank 1 of 2: version 0.0.0: expected .*, as rank 0 has" \
  "$work/a" "$run" "$work/a" "env OCTAVO_RANK_VERSION=0.0.0 $run"

# A long generation on two ranks, of which the second gets a signal in the middle.
generate=("$octavo" bench -t 1 -p 0 -n 4000 -r 1000 --no-limits --rank-timeout 3)
broken() { # SIGNAL LINE MILLISECONDS
  local begin ms code=0 second=
  # who is killed says nothing: mpirun does, unless it is told to be quiet
  mpirun "${options[@]:1}" -n 2 "${generate[@]}" >/dev/null 2>"$work/err" &
  mpirun=$!
  sleep 3
  for pid in $(pgrep -P "$mpirun" -f "^$octavo "); do
    if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx OMPI_COMM_WORLD_RANK=1; then second=$pid; fi
  done
  [[ -n $second ]] || fail "SIG$1: found no rank 1"
  begin=$(now)
  kill -"$1" "$second"
  wait "$mpirun" || code=$?
  mpirun=
  ms=$(($(now) - begin))
  ((code != 0)) || fail "SIG$1: expected an exit code that is not 0"
  ((ms < $3)) || fail "SIG$1: took $ms ms: expected less than $3"
  (($(grep -c "$2" "$work/err" || true) == 1)) || fail "SIG$1: expected one line: $2"
  expect_none "SIG$1"
  say "SIG$1 to rank 1: code $code after $ms ms: $(grep "$2" "$work/err")"
}
broken KILL "mpirun noticed that process rank 1 .*signal 9" 15000
broken STOP "octavo: error: rank 1 of 2 has not answered for 3 s" 20000

for rank in 0 1; do
  what="a panic of rank $rank" code=0
  OCTAVO_PANIC_RANK=$rank:20000 mpirun "${options[@]}" -n 2 "${generate[@]}" \
    >/dev/null 2>"$work/err" &
  mpirun=$!
  until grep -q "planted fault" "$work/err"; do
    kill -0 $mpirun 2>/dev/null || fail "$what: nothing happened"
    sleep 0.01
  done
  begin=$(now)
  wait $mpirun || code=$?
  mpirun=
  ms=$(($(now) - begin))
  ((ms < 15000)) || fail "$what: took $ms ms"
  expect_line "$what" $code "internal error: a planted fault of rank $rank"
  say "$what: code $code after $ms ms: $(grep error "$work/err")"
done
