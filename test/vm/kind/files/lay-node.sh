#!/bin/bash
# lay-node.sh TREE BASE VERSION: makes a kind node of a Debian tree, by the rules that
# kind's own base image is made by; BASE are that image's files, a part of kind's module,
# VERSION is that of Kubernetes.
set -euo pipefail
tree=$1 base=$2 version=$3
cd "$tree"

mkdir -p kind/bin kind/manifests etc/containerd etc/cni/net.d etc/kubernetes/manifests opt/cni/bin usr/local/bin
cp -r --no-preserve=mode,ownership "$base"/etc/. etc/
cp -r --no-preserve=mode,ownership "$base"/kind/. kind/
cp --no-preserve=mode,ownership "$base"/usr/local/bin/entrypoint usr/local/bin/
chmod 755 kind kind/bin kind/bin/* usr/local/bin/entrypoint

# systemd starts what a node needs and nothing else.
rm -f usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service usr/lib/systemd/system/multi-user.target.wants/* \
  etc/systemd/system/*.wants/* usr/lib/systemd/system/local-fs.target.wants/* usr/lib/systemd/system/sockets.target.wants/*udev* \
  usr/lib/systemd/system/sockets.target.wants/*initctl* usr/lib/systemd/system/basic.target.wants/*
touch etc/.updated var/.updated # no service has to take note of new files in /usr
echo ReadKMsg=no >> etc/systemd/journald.conf
ln -sf /usr/lib/systemd/systemd usr/sbin/init
ln -sf /dev/null etc/systemd/system/systemd-binfmt.service
mkdir -p etc/systemd/system/multi-user.target.wants
for unit in containerd kubelet undo-mount-hacks; do
  ln -sf "/etc/systemd/system/$unit.service" etc/systemd/system/multi-user.target.wants/
done

chroot . /usr/local/bin/ctr oci spec |
  chroot . jq '.hooks.createContainer[.hooks.createContainer | length] |= . + {"path": "/kind/bin/mount-product-files.sh"} | del(.process.rlimits)' \
    > etc/containerd/cri-base.json
printf %s "$version" > kind/version
: > etc/machine-id
cat > kind/manifests/default-storage.yaml <<'YAML'
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
YAML
# kubeadm adds this to the manifests of the control plane: with one CPU for all nodes a
# probe may wait for minutes, and each restart only adds to the load.
mkdir -p kind/patches
for program in kube-apiserver kube-controller-manager kube-scheduler etcd; do
  cat > "kind/patches/$program.yaml" <<YAML
spec:
  containers:
    - name: $program
      livenessProbe: {failureThreshold: 30, timeoutSeconds: 60}
YAML
done
chmod 644 etc/systemd/system/*.service.d/20-rig.conf
