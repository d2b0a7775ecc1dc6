// Package manifest feeds a tracker from files, so that kube-nft is useful without a
// cluster.
//
// A path names a file or a directory. Of a directory, the files *.yaml, *.yml and *.json count, in
// the order of their names; hidden files and subdirectories do not. The files hold Services,
// EndpointSlices, Nodes and ServiceCIDRs, as kubectl get -o yaml prints them: one or more
// documents, Lists included. The package fills in an API server's defaults.
//
// The package watches the files. The last good state stays in force when a file becomes unusable,
// when it is emptied in place, or when the path disappears: a slip removes nothing, and an error
// names file and line. Deleting a file from the directory deletes its objects. Writers should
// rename a complete file into place; a slowly written file may be seen half done.
package manifest
