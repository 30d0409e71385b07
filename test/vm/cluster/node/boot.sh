#!/bin/bash
# boot.sh: makes a Kubernetes node of a guest. NODE, NUMBER, ADDRESS and NODES come from the rig.
set -eu

# Flushes of the node's own disk would wait for the host's, dozens of times a second. What a guest has written is in the host's
# page cache, which outlives every way of killing a guest, so a power cut loses nothing more without them.
mount -o remount,nobarrier /

# The kernel may have some of these built in, and needs none of them for anything but pods and Services.
modprobe -aq overlay bridge br_netfilter veth nf_tables nft_masq nft_ct nft_nat nft_chain_nat nft_fib_ipv4 nft_numgen nft_hash \
  nft_reject_ipv4 nft_limit nft_log nf_conntrack loop || true
echo "127.0.0.1 localhost" > /etc/hosts
echo "$ADDRESS $NODE" >> /etc/hosts
: > /etc/resolv.conf
tr -d - < /proc/sys/kernel/random/boot_id > /etc/machine-id

# Pods of the other nodes are behind those nodes; there is no overlay network.
for n in $(seq "$NODES"); do
  [ "$n" = "$NUMBER" ] || ip route replace "10.244.$n.0/24" via "10.201.0.$((10 + n))"
done

mkdir -p /etc/cni/net.d /var/log /var/lib/kubelet
cat > /etc/cni/net.d/10-rig.conflist <<JSON
{"cniVersion": "1.0.0", "name": "rig", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "10.244.$NUMBER.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"}]}
JSON

# service NAME COMMAND...: run it for ever. While /run/off.NAME exists it is kept down: a test that wants a dead kubelet makes
# that file and kills the process.
service() {
  name=$1
  shift
  setsid bash -c '
    name=$1; shift
    while :; do
      while [ -e "/run/off.$name" ]; do sleep 0.5; done
      "$@" >> "/var/log/$name.log" 2>&1
      sleep 1
    done' service "$name" "$@" < /dev/null > /dev/null 2>&1 &
}

service containerd containerd --config /host/node/containerd.toml
# The kubelet would end at once without the socket, and then wait for a second.
service kubelet bash -c '
  until [ -S /run/containerd/containerd.sock ]; do sleep 0.1; done
  exec kubelet --config=/host/node/$0.kubelet.yaml --kubeconfig=/host/pki/$0.kubeconfig --hostname-override=$0 --node-ip=$1 \
    --root-dir=/var/lib/kubelet --v=1' "$NODE" "$ADDRESS"
# After containerd as well: a node may have a single processor, and Services can wait for pods.
service kube-proxy bash -c '
  until [ -S /run/containerd/containerd.sock ]; do sleep 0.3; done
  exec kube-proxy --config=/host/node/kube-proxy.yaml "--hostname-override=$0" --v=1' "$NODE"
