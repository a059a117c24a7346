#!/bin/bash
# A sweep as a Slurm job array: each task runs a part of it on its own, and knows of no other task.
# Submit it where `raysafl` is found, in an environment that all nodes see; the jobs inherit it. The
# study and a folder for the results come after the script, and then options of `raysafl run`. Without
# --array, the same script puts the parts together, as soon as all of them have ended well:
#
#   parts=$(sbatch --parsable --array=1-8 --cpus-per-task=8 --gpus=1 --time=8:00:00 \
#       deploy/slurm_array.sh study.py /shared/study)
#   sbatch --dependency=afterok:$parts deploy/slurm_array.sh study.py /shared/study
#
# The parts are in /shared/study/parts, and the whole is in /shared/study/whole. The folder is on a
# file system that all nodes see. Two minutes before the time limit, and if its node is lost, a task
# goes back into the queue. It continues from its last checkpoints, which are written every half
# minute. To try again what has failed, submit the whole array once more: what has ended is left out.
#SBATCH --ntasks=1
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
study=$1
out=$2
shift 2

if [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    # MLflow's database is there, too.
    exec raysafl merge "$out"/parts/*-of-* --out "$out/whole"
fi

# If the part needs Ray, `raysafl run` starts one that listens on this node only.
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID
rm -rf "$RAY_TMPDIR"
mkdir -m 700 "$RAY_TMPDIR"
trap 'rm -rf "$RAY_TMPDIR"' EXIT
part=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT
raysafl run "$study" --shard "$part" --out "$out/parts/${part/\//-of-}" "$@" &
driver=$!

# The time limit is near if the job still runs. After `scancel`, or where Slurm takes the node for
# another job, it does not, and Slurm has told the sweep itself to end.
put_back=
at_sigterm() {
    if [ "$(squeue --noheader --job "$SLURM_JOB_ID" --format %T)" = RUNNING ]; then
        put_back=yes
        kill -TERM "$driver"
    fi
}
trap at_sigterm TERM
code=0
wait "$driver" || code=$?
# A signal ends the first `wait`, but not the sweep.
trap '' TERM
wait "$driver" || code=$?
if [ -n "$put_back" ] && [ "$code" = 130 ]; then
    rm -rf "$RAY_TMPDIR"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
