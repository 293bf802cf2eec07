#!/usr/bin/env bash
# Puts what a node has besides this runtime into the root of a machine: containerd, runc, CNI, and their configuration.
# Runs in that machine: node-files.sh NAME CONTAINERD PODS
set -euo pipefail
source "$(dirname "$0")/../../scripts/lib.sh"

name=$1 containerd=$2 pods=$3
libraries=/usr/lib/$(uname -m)-linux-gnu

# Unpacked packages, as links into the root.
ln -sf "$STATE_DIR/$containerd"/usr/bin/* "$STATE_DIR/iptables"/usr/sbin/* /usr/bin/
ln -sf "$STATE_DIR/runc/usr/sbin/runc" /usr/sbin/runc
ln -sf "$STATE_DIR/iptables$libraries"/*.so* "$libraries/"
ln -sfn "$STATE_DIR/iptables$libraries/xtables" "$libraries/xtables"
for tool in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    ln -sf xtables-nft-multi "/usr/bin/$tool"
done
# The engine of the machine on which this runs: a node has none before the runtime is installed.
rm -f "$libraries"/libwasmedge.so* /usr/local/bin/*cwasi*
rm -rf /etc/containerd /etc/cni /etc/cwasi
mkdir -p /etc/containerd /etc/cni/net.d /etc/kubernetes

cat >/etc/cni/net.d/10-pods.conflist <<CNI
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CNI

# restrict_oom_score_adj: this machine may lack CAP_SYS_RESOURCE.
if [ "$containerd" = containerd-1.7 ]; then
    cat >/etc/containerd/config.toml <<TOML
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:test"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$STATE_DIR/cni/usr/lib/cni"
TOML
else
    cat >/etc/containerd/config.toml <<TOML
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/pause:test"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$STATE_DIR/cni/usr/lib/cni"]
TOML
fi

cat >/etc/kubernetes/kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
failCgroupV1: false
# Without CAP_SYS_RESOURCE it may not set every limit that it wants.
featureGates: {KubeletInUserNamespace: true}
# Bytes, not shares: a share is of the disk's size, of which a machine may have a part only (Size and Avail of df). With
# inodes, since what is left out is not checked.
evictionHard:
  {memory.available: 100Mi, nodefs.available: 200Mi, imagefs.available: 200Mi, nodefs.inodesFree: 1k,
   imagefs.inodesFree: 1k}
evictionPressureTransitionPeriod: 5s
imageGCHighThresholdPercent: 100
oomScoreAdj: 0
maxOpenFiles: 20000
readOnlyPort: 0
makeIPTablesUtilChains: false
# No name server is there, and no case looks up a name.
clusterDNS: [10.96.0.10]
# Tests look often.
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
YAML
cat >/etc/kubernetes/kube-proxy.yaml <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: "$STATE_DIR/kubernetes/cluster/kubeconfig"}
hostnameOverride: $name
clusterCIDR: 10.88.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
YAML
