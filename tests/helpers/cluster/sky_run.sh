#!/usr/bin/env bash
# The `run` section of deploy/sky.yaml for real, with what SkyPilot gives it, on two machines that are
# namespaces of this one; the head has a second Ray on port 6380, as SkyPilot does.
#
#   sudo VENV=DIR tests/helpers/cluster/sky_run.sh
#
# A sweep goes into an object store (moto) and loses both machines in the middle, as spot machines may be
# lost. Two new machines go on from the store. Then the rows are compared with those of this machine,
# and the second Ray has to be alive. SkyPilot itself does not run here.
#
# Needs: root, iproute2, util-linux; VENV (not below /tmp): an environment with the project's packages and
# moto[s3,server]. SKY_RAY=FILE is another `ray` for port 6380; SkyPilot's is 2.9.3.
set -Eeuo pipefail
REPO=$(cd "$(dirname "$0")/../../.." && pwd)
NET=10.78.0

if [ -z "${INSIDE:-}" ]; then
    WORK=$(mktemp -d /var/tmp/raysafl-sky.XXXX)
    trap 'rm -rf "$WORK"' EXIT
    INSIDE=1 WORK=$WORK REPO=$REPO unshare --pid --fork --kill-child --mount --mount-proc --net bash "$0"
    exit
fi

export PATH=$VENV/bin:$PATH PYTHONPATH=$REPO RAY_USAGE_STATS_ENABLED=0
trap 'echo "failed:"; tail -n 30 "$WORK"/*.log' ERR
cat > "$WORK/study.py" <<'END'
import raysafl as fl
from raysafl.quickstart import BASE

# The two machines take 4 runs at once, so that some are in the store before others have begun.
SWEEP = fl.grid(BASE.replace(rounds=3000), {"s": [0, 1, 2, 3, 4, 5]}, seeds=2, name="sky")
END
python -c "import yaml; print(yaml.safe_load(open('$REPO/deploy/sky.yaml'))['run'])" > "$WORK/run.sh"
ip link set lo up
ip link add br0 type bridge
ip addr add $NET.254/24 dev br0
ip link set br0 up
python -m moto.server -H $NET.254 -p 5555 > "$WORK/moto.log" 2>&1 &
export AWS_ACCESS_KEY_ID=none AWS_SECRET_ACCESS_KEY=none AWS_DEFAULT_REGION=us-east-1
STORE="s3://bucket/sky?endpoint_override=http://$NET.254:5555"
# Make the bucket, and say how many runs of the sweep it holds.
store() { python - "$1" <<'END'
import sys

import boto3

client = boto3.client("s3", endpoint_url="http://10.78.0.254:5555")
if sys.argv[1] == "make":
    client.create_bucket(Bucket="bucket")
elif client.list_objects_v2(Bucket="bucket", Prefix="sky/ledger.jsonl")["KeyCount"]:
    ledger = client.get_object(Bucket="bucket", Key="sky/ledger.jsonl")["Body"].read()
    print(ledger.count(b"finished"))
else:
    print(0)
END
}
until curl -s "http://$NET.254:5555" > /dev/null; do sleep 1; done
store make

# A machine `node RANK NUMBER`, which runs the section and then says how it ended.
node() {
    unshare --pid --fork --kill-child --mount --mount-proc --net bash -c "
        until ip link show eth0 > /dev/null 2>&1; do sleep 0.1; done
        ip link set lo up; ip addr add $NET.$2/24 dev eth0; ip link set eth0 up
        ip route add default via $NET.254
        mkdir -p $WORK/$2/tmp; mount --bind $WORK/$2/tmp /tmp; ln -s $VENV /tmp/raysafl-venv
        export HOME=$WORK/$2 SKYPILOT_NODE_RANK=$1 SKYPILOT_NUM_NODES=2 SKYPILOT_NUM_GPUS_PER_NODE=0
        export SKYPILOT_NODE_IPS=\$'$3' RAY_AUTH_TOKEN=0123456789abcdef0123456789abcdef
        export STUDY=$WORK/study.py OUT='$STORE' OPTIONS='--executor ray --pack 1 --quiet'
        cd $WORK/$2
        if [ $1 = 0 ]; then
            env -u RAY_AUTH_TOKEN -u PYTHONPATH RAY_AUTH_MODE=disabled ${SKY_RAY:-ray} start --head --port 6380 \
                --dashboard-port 8266 --temp-dir /tmp/ray_skypilot --num-cpus 1
        fi
        bash $WORK/run.sh; echo \"the section ended with \$?\"
        if [ $1 = 0 ]; then pgrep -f gcs_server.*6380 > /dev/null && echo 'the other Ray lives'; fi" \
        > "$WORK/node$2.log" 2>&1 &
    local pid=$!
    sleep 1
    ip link add "veth$2" type veth peer name eth0 netns "$(pgrep -P $pid)"
    ip link set "veth$2" up master br0
    machines+=("$pid")
}

begin=$SECONDS machines=()
node 0 1 "$NET.1\\n$NET.2"
node 1 2 "$NET.1\\n$NET.2"
until [ "$(store count)" -gt 0 ]; do
    [ $((SECONDS - begin)) -lt 400 ]
    sleep 1
done
echo "$((SECONDS - begin)) s: $(store count) of 12 cells are in the store, and both machines are lost"
[ "$(store count)" -lt 12 ]
kill -9 "${machines[@]}"
wait "${machines[@]}" 2> /dev/null || true

begin=$SECONDS machines=()
node 0 3 "$NET.3\\n$NET.4"
node 1 4 "$NET.3\\n$NET.4"
wait "${machines[@]}"
echo "$((SECONDS - begin)) s: two new machines have ended"
grep -h 'ended with' "$WORK"/node[34].log
grep -q 'ended with 0' "$WORK/node3.log"
grep -q 'ended with 0' "$WORK/node4.log"
grep 'the other Ray lives' "$WORK/node3.log"
cd "$WORK"
raysafl run study.py --executor here --track none --quiet --out here > here.log
raysafl report "$STORE" > report.log
python - <<'END'
from pathlib import Path

import pandas as pd
import raysafl as fl

by = ["run_id", "replicate", "round"]
(there,) = [path.parent for path in Path("results").rglob("ledger.jsonl")]
frames = [fl.load(str(path)).rounds.drop(columns="seconds", errors="ignore") for path in ("here", there)]
rows = [frame.sort_values(by, ignore_index=True) for frame in frames]
pd.testing.assert_frame_equal(*rows)
print(f"{len(rows[0])} rows, equal to this machine's")
END
echo "sky_run: all passed"
