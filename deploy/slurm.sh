#!/bin/bash
# A sweep on the nodes of one Slurm job. Submit it where `raysafl` is found, in an environment that
# all nodes see; the job inherits it. What comes after the script is for `raysafl run`:
#
#   sbatch -N 4 --gpus-per-node=4 --cpus-per-task=32 --time=8:00:00 deploy/slurm.sh \
#       study.py --out /shared/study
#
# --out is a folder of a file system that all nodes see. Two minutes before the time limit, and if a
# node is lost, the job goes back into the queue. It continues from its last checkpoints, which are
# written every half minute.
# `scancel` ends it for good; the same command, submitted again, continues.
#
# The job has a Ray of its own, with a port, a token and folders of its own, and ends that one only.
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# Where the other nodes find this one, the first of the job. If its name leads to a network that they
# do not share, write an address here. Other jobs on the same node have other numbers.
HEAD=$(getent ahostsv4 "$(hostname)" | awk 'NR == 1 {print $1}')
PORT=$((20000 + SLURM_JOB_ID % 5000 * 2))
export HEAD PORT RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/.raysafl-$SLURM_JOB_ID.token
rm -f "$RAY_AUTH_TOKEN_PATH"
(umask 077; od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH")

# What each node runs, until it is told to end. Ray's sockets need a folder with a short name, and by
# default Ray waits for half a minute before it ends.
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
start_ray() {
    rm -rf "$RAY_TMPDIR"
    mkdir -m 700 "$RAY_TMPDIR" || exit
    trap 'rm -rf "$RAY_TMPDIR"' EXIT
    trap 'exit 143' TERM
    has=(--num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus="${SLURM_GPUS_ON_NODE:-0}")
    # Port 0 is any that is free: by default, the workers of all Rays on a node share a range.
    any_port=(--min-worker-port=0 --max-worker-port=0)
    if [ "$SLURM_NODEID" = 0 ]; then
        # Ray Client, which is there if grpc is, would take the same port in each job.
        ! python -c 'import grpc' 2> /dev/null || any_port+=(--ray-client-server-port=$((PORT + 1)))
        ray start --head --block --node-ip-address="$HEAD" --port="$PORT" "${has[@]}" \
            "${any_port[@]}" --include-dashboard=false
    else
        until ray health-check --address "$HEAD:$PORT" > /dev/null 2>&1; do sleep 1; done
        ray start --block --address "$HEAD:$PORT" "${has[@]}" "${any_port[@]}"
    fi
}
export -f start_ray
raysafl run "$@" --address "$HEAD:$PORT" --wait-nodes "$SLURM_NNODES" &
driver=$!
# A node that fails does not end the others. When all have ended, as after `scancel`, the sweep
# cannot go on.
{
    trap : TERM
    srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --export=ALL --cpu-bind=none \
        --kill-on-bad-exit=0 --wait=0 bash -c start_ray || true
    kill -KILL "$driver" 2> /dev/null
} &
ray=$!

# Signals the job's steps, of which Ray is the only one, and not this script. Where a node is lost,
# Slurm ends them itself, and `scancel` would ask it again and again for a minute.
end_ray() {
    timeout 5 scancel --signal=TERM "$SLURM_JOB_ID" 2> /dev/null || true
    wait "$ray" || true
    rm -f "$RAY_AUTH_TOKEN_PATH"
}
trap end_ray EXIT

# The time limit is near if the job still runs. After `scancel`, or where Slurm takes the nodes for
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
trap '' TERM
# A signal ends the first `wait`, but not the sweep.
wait "$driver" || code=$?
if [ -n "$put_back" ] && [ "$code" = 130 ]; then
    trap - EXIT
    end_ray
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
