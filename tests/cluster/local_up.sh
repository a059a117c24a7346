#!/usr/bin/env bash
# docs/cluster.md for real on one machine: `ray up` of cluster-local.yaml over ssh, sweeps by
# `ray exec`, `ray submit` and `ray job submit`, `ray rsync-down`, `ray down`; prints the seconds.
#
#   sudo tests/cluster/local_up.sh [MACHINES]
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
# Needs: openssh-server, rsync, iproute2, util-linux, curl, python3 with venv; a package index.
# VENV=DIR takes an environment (not below /tmp) with all of this and 'ray[default,tune]', not a new one.
set -Eeuo pipefail
MACHINES=${1:-0}
REPO=$(cd "$(dirname "$0")/../.." && pwd)
NET=10.77.0

if [ -z "${INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "Run as root: 'ray up' would end every Ray here. See above."; exit 2; }
    for tool in sshd rsync ip unshare nsenter curl; do
        PATH=$PATH:/usr/sbin command -v $tool > /dev/null || { echo "$tool is missing"; exit 2; }
    done
    LOG=${LOG:-}
    WORK=$(mktemp -d /var/tmp/raysafl-up.XXXX)
    trap 'rm -rf "$WORK"' EXIT
    rsync -a --filter='dir-merge,- .gitignore' "$REPO/" "$WORK/repo/"
    if [ -z "${VENV:-}" ]; then
        VENV=$WORK/venv
        echo "== pip install, as in setup_commands"
        python3 -m venv "$VENV"
        (cd "$WORK/repo" && time "$VENV/bin/pip" install -q 'ray[default,tune]==2.60.0' -e . -c constraints.txt)
    fi
    "$VENV/bin/pip" install -q setuptools # below there is no network to build the package with
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
    printf '%4d s  %s\n' $((SECONDS - begin)) "$*"
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

cat > /tmp/my_sweep.py <<'END'
import sys
from raysafl import Hardware, Runner, Sweep
from raysafl.quickstart import BASE
runs = {(seed,): BASE.replace(seed=seed, rounds=5) for seed in (0, 10)}
outcome = Runner(Sweep("mine", runs, axes=("seed",)), out=sys.argv[1], address="auto",
                 hardware=Hardware(cpus=0.5), quiet=True).run()
sys.exit(not outcome.ok)
END
small='--address auto --cpus 0.5 --trials 2 --quiet'
trap 'echo "failed; the end of what was said:"; tr "\r" "\n" < "$LOG" | cut -c1-300 | tail -n 60' ERR
step ray get-auth-token --generate
step ray up -y cluster-local.yaml
step ray exec cluster-local.yaml 'ray status'

nodes() { ray exec cluster-local.yaml 'ray list nodes --filter state=ALIVE' 2>&1 | grep -c ALIVE; }
all_nodes() { for _ in $(seq 60); do [ "$(nodes)" -ge "$MACHINES" ] && return; sleep 2; done; return 1; }
step all_nodes
step ray get-head-ip cluster-local.yaml
step ray rsync-up cluster-local.yaml docs/ '~/data/'
step ray rsync-up cluster-local.yaml --all-nodes
if command -v tmux > /dev/null; then
    step ray exec cluster-local.yaml --tmux 'touch ~/by_tmux'
fi
step ray exec cluster-local.yaml "raysafl quickstart --out ~/results/quickstart $small"
step ray submit cluster-local.yaml /tmp/my_sweep.py '~/results/mine'
if [ "$MACHINES" != 0 ]; then
    ray dashboard cluster-local.yaml > /tmp/tunnel.log 2>&1 &
    ray attach cluster-local.yaml --port-forward 5000 < <(sleep 3600) > /tmp/tunnel2.log 2>&1 &
    sleep 5
fi
export RAY_AUTH_MODE=token
# shellcheck disable=SC2086
step ray job submit --address http://127.0.0.1:8265 -- raysafl quickstart --out results/job $small
step ray job list --address http://127.0.0.1:8265
step curl -sf http://127.0.0.1:5000/health
step ray rsync-down cluster-local.yaml '~/results/' results/
step ray down -y cluster-local.yaml
if pgrep -a raylet; then echo "Ray still runs"; exit 1; fi
if command -v tmux > /dev/null; then
    test -e "$WORK/$([ "$MACHINES" = 0 ] && echo laptop || echo head)/by_tmux"
fi
for name in quickstart mine job; do
    test -s "results/$name/runs.parquet"
done
python - <<'END'
import pandas as pd
a, b = (pd.read_parquet(f"results/{name}/rounds").drop(columns="seconds") for name in ("quickstart", "job"))
by = ["run_id", "replicate", "round"]
a, b = (frame.sort_values(by, ignore_index=True) for frame in (a, b))
pd.testing.assert_frame_equal(a, b)
runs = pd.read_parquet("results/quickstart/runs.parquet")
assert set(runs.status) == {"finished"}
print(f"{len(a)} rows of {runs.run_id.nunique()} runs, the same by `ray exec` and `ray job submit`")
END
echo "local_up: all passed"
