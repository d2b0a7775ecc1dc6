// Package config works out the settings of kube-nft. Make a Reader with NewReader of the command's flags, and call its
// Read. The settings come from defaults, from a file in kube-proxy's
// format (KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1), and from flags with
// kube-proxy's names. A given flag wins over the file, even where kube-proxy ignores it.
//
// A file can hold a second document of kind KubeNFTConfiguration for settings that kube-proxy
// lacks.
//
// As in kube-proxy, a field that is empty, zero or null counts as left out. Four fields of the
// section iptables, masqueradeAll, masqueradeBit, syncPeriod and minSyncPeriod, hold where the
// section nftables leaves them out: nodes that ran kube-proxy in another mode keep them. This does
// not apply if the file's mode is nftables, in which kube-proxy ignores that section.
//
// A given minSyncPeriod holds, even kube-proxy's default of one second: nothing shows whether a
// user chose it. kubeadm leaves it out.
package config
