// Package nft declares kube-nft's ruleset, computes what a change of it takes, and speaks
// to the kernel. (To be completed: hooks, priorities, packet paths.)
package nft
