# Runs in the guest before it takes commands: Docker, as an init system would start it.
# Flushes of the guest's disk would wait for the host's; what a guest has written is in
# the host's page cache, and the disk is thrown away.
mount -o remount,nobarrier /
# A stock kernel has modules for what Docker and kube-proxy ask of nftables.
modprobe -aq overlay bridge br_netfilter veth nf_tables nft_compat xt_addrtype xt_conntrack xt_MASQUERADE xt_nat \
  nft_masq nft_ct nft_nat nft_chain_nat nft_fib_ipv4 nft_numgen nft_hash nft_reject_ipv4 nft_limit nft_log nf_conntrack loop xfs || true
echo "127.0.0.1 localhost" > /etc/hosts
: > /etc/resolv.conf
setsid dockerd --exec-opt native.cgroupdriver=cgroupfs --log-level warn > /var/log/docker.log 2>&1 < /dev/null &
for _ in $(seq 600); do
  docker info > /dev/null 2>&1 && break
  sleep 0.2
done
docker info > /dev/null 2>&1 || { echo "docker does not answer:"; tail -20 /var/log/docker.log; exit 1; }
# With one CPU for all nodes the control plane comes first: its API server has to answer
# while kubelets start, or kubeadm gives up.
docker events --filter event=start --format '{{.Actor.Attributes.name}}' < /dev/null 2> /dev/null | while read -r name; do
  case $name in *-control-plane) docker update --cpu-shares 16384 "$name" ;; esac
done &
