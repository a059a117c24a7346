#!/usr/bin/env bash
# A real Slurm of a login host and two computing hosts, on one machine: cluster.sh FOLDER
#
# FOLDER, which must not be below /tmp, holds `root`, which packages.sh has made. Started as root by
#   unshare --net --pid --mount --uts --fork --kill-child --mount-proc cluster.sh FOLDER
# this is the login host, with the controller. Each of the hosts n1 and n2 has a network, processes
# and a /tmp of its own, and sees all other folders, and those below /tmp that SEEN lists: a Python
# may be there. `cluster.sh FOLDER n1` is such a host.
set -euo pipefail
cd "$1"
PROGRAMS=$1/root/usr/sbin
LIBRARIES=$1/root/usr/lib/x86_64-linux-gnu
export SLURM_CONF=$1/slurm.conf LD_LIBRARY_PATH=$LIBRARIES:$LIBRARIES/slurm-wlm

if [ -n "${2:-}" ]; then
    hostname "$2"
    mkdir "$1/tmp.$2"
    mount --bind /tmp "$1/tmp.$2"
    mount -t tmpfs tmpfs /tmp
    for folder in ${SEEN:-}; do
        mkdir -p "$folder"
        mount --bind "$1/tmp.$2${folder#/tmp}" "$folder"
    done
    ip link set lo up
    until ip link show "$2" > /dev/null 2>&1; do sleep 0.1; done
    ip addr add "10.77.0.${2#n}/24" dev "$2"
    ip link set "$2" up
    exec "$PROGRAMS/slurmd-wlm" -N "$2" -d "$PROGRAMS/slurmstepd-wlm" -D
fi

mkdir -p state
cat > slurm.conf <<END
ClusterName=two
SlurmctldHost=login(10.77.0.3)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
# So many seconds a job that is put back waits before it starts again.
AuthInfo=cred_expire=5
# So many seconds after its last answer a host counts as lost.
SlurmdTimeout=10
PluginDir=$LIBRARIES/slurm-wlm
StateSaveLocation=$1/state
SlurmdSpoolDir=$1/spool.%n
SlurmctldPidFile=$1/controller.pid
SlurmdPidFile=$1/%n.pid
SlurmctldLogFile=$1/controller.log
SlurmdLogFile=$1/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2
NodeName=n1 NodeAddr=10.77.0.1 CPUs=4 RealMemory=2000
NodeName=n2 NodeAddr=10.77.0.2 CPUs=4 RealMemory=2000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
END
printf '127.0.0.1 localhost\n10.77.0.1 n1\n10.77.0.2 n2\n10.77.0.3 login\n' > hosts
mount --bind hosts /etc/hosts
hostname login
ip link set lo up
ip link add bridge type bridge
ip addr add 10.77.0.3/24 dev bridge
ip link set bridge up
for host in n1 n2; do
    unshare --net --pid --mount --uts --fork --kill-child --mount-proc bash "$0" "$1" $host \
        > $host.out 2>&1 &
    echo $! > $host.unshare
    ip link add $host type veth peer name to_$host
    ip link set to_$host master bridge up
    # It has a network of its own when `unshare` has begun.
    until ! [ "/proc/$!/ns/net" -ef /proc/$$/ns/net ]; do sleep 0.1; done
    ip link set $host netns $!
done
exec "$PROGRAMS/slurmctld-wlm" -D
