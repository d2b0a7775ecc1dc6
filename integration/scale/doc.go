// Command scale measures kube-nft in clusters of many Services, against the kernel of this
// machine, and beside each number what the kernel alone takes.
//
// It needs root, the nft program and a kube-nft binary, works in network namespaces of its
// own, and leaves nothing behind. In this process it takes the steps of a cold start and of
// small changes one by one; a real kube-nft that follows an API server over HTTP shows how
// long they take together, and what churn costs. With -out it writes a results page.
package main
