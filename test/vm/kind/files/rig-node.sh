#!/bin/bash
# The pods' network of a node, in place of a CNI daemon: a bridge whose range follows from
# the last number of the node's address, and routes to those of the other nodes. Docker
# gives the first ones addresses that end in 2, 3 and so on; there may be eight.
# It runs before every start of the kubelet.
set -euo pipefail
for _ in $(seq 600); do
  [ -S /run/containerd/containerd.sock ] && break
  sleep 0.2
done
for _ in $(seq 100); do
  address=$(ip -4 -o address show dev eth0 scope global | sed -n 's|.* inet \([0-9.]*\)/.*|\1|p')
  [ -n "$address" ] && break
  sleep 0.1
done
number=${address##*.}
for n in $(seq 2 9); do
  [ "$n" = "$number" ] || ip route replace "10.244.$n.0/24" via "${address%.*}.$n"
done
cat > /etc/cni/net.d/10-rig.conflist <<JSON
{"cniVersion": "1.0.0", "name": "rig", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "10.244.$number.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"}]}
JSON
# User Mode Linux names no clock rate, without which the kubelet does not start.
if ! grep -q 'cpu MHz' /proc/cpuinfo; then
  { cat /proc/cpuinfo; echo "cpu MHz		: 2000.000"; } > /run/cpuinfo
  mount --bind /run/cpuinfo /proc/cpuinfo
fi
