// Package config works out the settings of kube-nft: from defaults, from a file in the
// format of kube-proxy's (KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1), and
// from flags named as kube-proxy's. A flag that is given wins over the file, also where
// kube-proxy ignores it.
//
// A file can hold a second document of kind KubeNFTConfiguration for what kube-proxy has no
// field for.
//
// As in kube-proxy, a field that is empty, zero or null counts as left out. Of the section
// iptables, masqueradeAll, masqueradeBit, syncPeriod and minSyncPeriod hold where the
// section nftables leaves them out, so that nodes that ran kube-proxy in another mode keep
// them; not so if the file's mode is nftables, in which kube-proxy ignores that section.
//
// A minSyncPeriod that a file does give holds, even if it is the second that kube-proxy
// defaults to: nothing tells whether a user chose it. kubeadm leaves it out.
package config
