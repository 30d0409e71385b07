#!/bin/bash
# import-node.sh TREE NODE IMAGE: imports the node's tree as an image into the Docker of
# the guest's tree, with that Docker, so that no guest spends its time on it. It runs in
# mount, process and network namespaces of its own: nothing stays mounted or running.
set -euo pipefail
tree=$1 node=$2 image=$3
mount --make-rprivate /
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount -t tmpfs run "$tree/run"
mount -t tmpfs tmp "$tree/tmp"
ip link set lo up
chroot "$tree" dockerd --iptables=false --ip6tables=false --bridge=none --storage-driver=overlay2 \
  --exec-opt native.cgroupdriver=cgroupfs --log-level warn > "$tree/tmp/log" 2>&1 &
docker=$!
for _ in $(seq 300); do
  chroot "$tree" docker info > /dev/null 2>&1 && break
  kill -0 $docker 2>/dev/null || break
  sleep 0.1
done
tar --numeric-owner --xattrs -C "$node" -c . |
  chroot "$tree" docker import --change 'ENV container=docker' --change 'STOPSIGNAL SIGRTMIN+3' \
    --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' - "$image" || { tail -20 "$tree/tmp/log"; exit 1; }
kill $docker
wait $docker || true
