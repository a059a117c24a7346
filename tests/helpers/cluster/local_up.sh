#!/usr/bin/env bash
# docs/cluster.md for real on one machine: its commands from `ray get-auth-token` to `ray down`,
# with cluster-local.yaml, over ssh; prints the seconds of each.
#
#   sudo tests/helpers/cluster/local_up.sh [MACHINES]
#
# `ray up` and `ray down` end EVERY Ray on a machine. So this runs in namespaces of its own (as
# root): nothing outside can be seen from there, let alone ended. With MACHINES = 0 (the default)
# the cluster is 127.0.0.1; with 2 or more, so many machines on a private network, the first of
# them the head, and the commands are given on yet another one. Each has its own processes, home,
# /tmp and sshd with a throw-away key. Without root, and if no Ray of yours runs that you need:
# follow docs/cluster.md by hand.
#
# What the commands say is shown if one of them fails; LOG=FILE (not below /tmp) keeps it.
#
# Needs: openssh-server, rsync, tmux, iproute2, util-linux, curl, python3 with venv; a package index;
# MNIST in RAYSAFL_DATA (not below /tmp). VENV=DIR takes an environment (not below /tmp) with
# 'ray[default,tune]' and the project's packages, not a new one; only one script at a time.
set -Eeuo pipefail
MACHINES=${1:-0}
REPO=$(cd "$(dirname "$0")/../../.." && pwd)
NET=10.77.0

if [ -z "${INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "Run as root: 'ray up' would end every Ray here. See above."; exit 2; }
    for tool in sshd rsync tmux ip unshare script curl; do
        PATH=$PATH:/usr/sbin command -v $tool > /dev/null || { echo "$tool is missing"; exit 2; }
    done
    [ -d "${RAYSAFL_DATA:-}/MNIST" ] || { echo "Set RAYSAFL_DATA: the folder with MNIST"; exit 2; }
    WORK=$(mktemp -d /var/tmp/raysafl-up.XXXX)
    trap 'rm -rf "$WORK"' EXIT
    rsync -a --filter='dir-merge,- .gitignore' "$REPO/" "$WORK/repo/"
    mkdir "$WORK/repo/data"
    cp -rL "$RAYSAFL_DATA/MNIST" "$WORK/repo/data/"
    if [ -z "${VENV:-}" ]; then
        VENV=$WORK/venv
        echo "== pip install, as in setup_commands"
        python3 -m venv "$VENV"
        (cd "$WORK/repo" && time "$VENV/bin/pip" install -q 'ray[default,tune]==2.60.0' -e '.[all]' -c constraints.txt)
    fi
    "$VENV/bin/pip" install -q 'setuptools>=77' # below there is no network to build the package with
    INSIDE=1 WORK=$WORK VENV=$VENV LOG=${LOG:-$WORK/log} unshare --pid --fork --kill-child --mount --mount-proc --net \
        bash "$0" "$MACHINES"
    exit
fi

# A home, a /tmp and an account for the machine NAME; then sshd. Called in its namespaces.
furnish() {
    local home=$WORK/$1
    mkdir -p "$home/.ssh" "$home/tmp" /run/sshd
    cp /etc/skel/.bashrc "$home/"
    cp "$WORK/key" "$home/.ssh/id_ed25519"
    cp "$WORK/key.pub" "$home/.ssh/authorized_keys"
    ln -sfn "$VENV" "$home/raysafl-venv"
    awk -F: -v OFS=: -v home="$home" '$1 == "root" {$6 = home; $7 = "/bin/bash"} 1' \
        "$WORK/passwd" > "$home/passwd"
    mount --bind "$home/passwd" /etc/passwd
    mount --bind "$home/tmp" /tmp
    ip link set lo up
    # The package index cannot be reached from here: what is installed has to do.
    cat > "$home/sshd_config" <<END
HostKey $WORK/host_key
AuthorizedKeysFile $home/.ssh/authorized_keys
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
SetEnv PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=false RAY_USAGE_STATS_ENABLED=0 MLFLOW_DISABLE_TELEMETRY=true
END
    "$(command -v sshd || echo /usr/sbin/sshd)" -f "$home/sshd_config" -E "$home/sshd.log"
}

# Another machine on the private network: `machine NAME NUMBER`.
machine() {
    unshare --pid --fork --kill-child --mount --mount-proc --net bash -c "
        $(declare -f furnish); WORK=$WORK VENV=$VENV
        until ip link show eth0 > /dev/null 2>&1; do sleep 0.1; done
        ip addr add $NET.$2/24 dev eth0; ip link set eth0 up; ip route add default via $NET.254
        furnish $1; sleep infinity & wait" &
    sleep 1
    ip link add "veth$2" type veth peer name eth0 netns "$(pgrep -P $!)"
    ip link set "veth$2" up master br0
}

step() {
    local begin=$SECONDS
    echo "== $*" >> "$LOG"
    "$@" >> "$LOG" 2>&1
    printf '%4d s  %s\n' $((SECONDS - begin)) "${*//$WORK\//}"
}

cp /etc/passwd "$WORK/passwd"
ssh-keygen -q -t ed25519 -N '' -f "$WORK/key"
ssh-keygen -q -t ed25519 -N '' -f "$WORK/host_key"
if [ "$MACHINES" = 0 ]; then
    HEAD=127.0.0.1 WORKERS=
else
    ip link add br0 type bridge
    ip addr add $NET.254/24 dev br0
    ip link set br0 up
    HEAD=$NET.1 WORKERS=
    machine head 1
    for i in $(seq 2 "$MACHINES"); do
        machine "worker$i" "$i"
        WORKERS=$WORKERS${WORKERS:+, }$NET.$i
    done
fi
furnish laptop
export HOME=$WORK/laptop PATH=$VENV/bin:$PATH RAY_USAGE_STATS_ENABLED=0
cd "$WORK/repo"
echo "$(pgrep -c .) processes are to be seen from here"
sed -i "s/head_ip: 127.0.0.1/head_ip: $HEAD/; s/worker_ips: \[\]/worker_ips: [$WORKERS]/;
    s/ssh_user: me/ssh_user: root/" cluster-local.yaml

cat > my_sweep.py <<'END'
import sys
from pathlib import Path

from raysafl import Hardware, Runner, Sweep
from raysafl.quickstart import BASE

runs = {(seed,): BASE.replace(seed=seed, rounds=5) for seed in (0, 10)}
outcome = Runner(Sweep("mine", runs, axes=("seed",)), out=Path.home() / "results/mine",
                 hardware=Hardware(cpus=0.5), address="auto", quiet=True).run()
sys.exit(not outcome.ok)
END
yaml=cluster-local.yaml
head=$WORK/$([ "$MACHINES" = 0 ] && echo laptop || echo head) # its home
url=http://127.0.0.1:8265
export TERM=xterm
trap 'echo "failed; the end of what was said:"; tr "\r" "\n" < "$LOG" | cut -c1-300 | tail -n 60' ERR

echo "-- up"
nodes() { ray exec $yaml 'ray list nodes --filter state=ALIVE' 2>&1 | grep -c ALIVE; }
all_nodes() { for _ in $(seq 300); do [ "$(nodes)" -ge "$MACHINES" ] && return; sleep 2; done; return 1; }
step ray get-auth-token --generate
step ssh -o StrictHostKeyChecking=accept-new "root@$HEAD" true
step ray up -y $yaml
step ray exec $yaml 'ray status'
step all_nodes

echo "-- files, a sweep in tmux"
sweep='cd raysafl-src && raysafl run experiments/safari/table8_mnist.py --scale smoke --address auto --autoscale --out ~/results/table8'
attach() { # until its progress is to be seen, then Ctrl-b d
    : > /tmp/attached
    { for _ in $(seq 600); do grep -q runs /tmp/attached && break; sleep 1; done; printf '\002d'; sleep 2; } |
        script -qefc "ray attach $yaml --tmux" /tmp/attached
    grep -q runs /tmp/attached && grep -q 'detached (from session' /tmp/attached
}
await() { for _ in $(seq 600); do compgen -G "$1" && return; sleep 1; done; return 1; }
step ray rsync-up $yaml data/ '~/data/'
step ray rsync-up $yaml --all-nodes
step ray exec $yaml --tmux "$sweep"
step attach
step await "$head/results/table8/runs.parquet"

echo "-- a sweep by exec, the same again, a script"
quickstart='raysafl quickstart --address auto'
again() { ray exec $yaml "$quickstart --out ~/results/quickstart" | tee /tmp/again; grep 'finished before' /tmp/again; }
step ray exec $yaml "$quickstart --out ~/results/quickstart"
step again
step ray submit $yaml my_sweep.py

echo "-- tunnels, jobs"
if [ "$MACHINES" = 0 ]; then
    ssh -N -L 5001:127.0.0.1:5000 -i ~/.ssh/id_ed25519 "root@$(ray get-head-ip $yaml)" &
else # not on the head's own machine: there the ports are taken
    ray dashboard $yaml > /tmp/tunnel.log 2>&1 &
    ray attach $yaml --port-forward 5000 < <(sleep 3600) > /tmp/tunnel2.log 2>&1 &
    ssh -N -L 5001:127.0.0.1:5000 -i ~/.ssh/id_ed25519 "root@$(ray get-head-ip $yaml)" &
fi
sleep 8
export RAY_AUTH_MODE=token RAY_API_SERVER_ADDRESS=$url
in_state() { ray job status "$1" | tee /tmp/state; grep -qi "$2" /tmp/state; }
bearer() { curl -sf -H "Authorization: Bearer $(ray get-auth-token 2> /dev/null)" "$1"; }
step bearer "$url/api/version"
step curl -sf http://127.0.0.1:5000/health
step curl -sf http://127.0.0.1:5001/health
# shellcheck disable=SC2086
step ray job submit --submission-id first -- $quickstart --out results/job
step ray job logs first
step in_state first succeeded
# shellcheck disable=SC2086
step ray job submit --submission-id second --no-wait -- $quickstart --out results/stopped
step await "$head/results/stopped/ledger.jsonl" # the first runs have ended
step ray job stop second
step in_state second stopped
# shellcheck disable=SC2086
step ray job submit -- $quickstart --out results/stopped
step ray job list

echo "-- at home, down"
ui() { # the port of its own choice
    raysafl ui > /tmp/ui 2>&1 &
    for _ in $(seq 300); do grep -o 'http://[0-9.:]*' /tmp/ui > /tmp/at && break; sleep 1; done
    cat /tmp/ui
    curl -sf --retry 30 --retry-connrefused "$(head -n 1 /tmp/at)/health"
    kill $!
}
step ray rsync-down $yaml '~/results/' results/
step ray down -y $yaml
step raysafl sync results
step ui
if pgrep -a raylet; then echo "Ray still runs"; exit 1; fi
for name in quickstart mine job table8; do
    test -s "results/$name/runs.parquet"
done
python - <<'END'
import pandas as pd
by = ["cell", "round"]
frames = [
    pd.read_parquet(f"results/{name}/rounds").drop(columns="seconds").sort_values(by, ignore_index=True)
    for name in ("quickstart", "job", "stopped")
]
for frame in frames[1:]:
    pd.testing.assert_frame_equal(frames[0], frame)
runs = pd.read_parquet("results/quickstart/runs.parquet")
assert set(runs.status) == {"finished"}
print(f"{len(frames[0])} rows of {runs.run_id.nunique()} runs, the same by exec, by a job, and by one stopped and given again")
END
echo "local_up: all passed"
