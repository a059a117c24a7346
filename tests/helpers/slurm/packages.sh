#!/usr/bin/env bash
# Debian's Slurm, unpacked into FOLDER/root; nothing is installed: packages.sh FOLDER
#
# Needs apt-get with a package list (apt-get update), dpkg and a network: it downloads 3.4 MB.
set -euo pipefail
mkdir -p "$1/packages"
cd "$1/packages"
apt-get download -q -o APT::Sandbox::User=root libhwloc15 liblua5.1-0 libmunge2 munge \
    slurm-wlm-basic-plugins slurm-client slurmctld slurmd
for package in *.deb; do
    dpkg -x "$package" ../root
done
