#!/bin/bash
# import.sh TREE ARCHIVE: unpacks the images of the archive into the containerd store of a node's root at TREE, with the
# containerd in that tree. It runs in mount and process namespaces of its own, so nothing is left mounted or running.
set -euo pipefail
tree=$1 archive=$2
mount --make-rprivate /
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount -t tmpfs run "$tree/run"
mount -t tmpfs tmp "$tree/tmp"
: > "$tree/tmp/images.tar"
mount --bind "$archive" "$tree/tmp/images.tar"
chroot "$tree" /usr/local/bin/containerd --log-level error > "$tree/tmp/log" 2>&1 &
containerd=$!
for _ in $(seq 300); do
  [ -S "$tree/run/containerd/containerd.sock" ] && break
  kill -0 $containerd 2>/dev/null || break
  sleep 0.1
done
chroot "$tree" /usr/local/bin/ctr -n k8s.io images import --snapshotter overlayfs /tmp/images.tar || { tail -20 "$tree/tmp/log"; exit 1; }
kill $containerd
wait $containerd || true
