// Package manifest feeds a tracker from files, so that kube-nft is useful without a
// cluster.
//
// A path names a file, or a directory whose files *.yaml, *.yml and *.json count, in the
// order of their names; hidden files and subdirectories do not. The files hold Services,
// EndpointSlices, Nodes and ServiceCIDRs, as kubectl get -o yaml prints them: one or more
// documents, Lists included. What an API server would fill in is filled in.
//
// The files are watched. A file that cannot be used keeps its last good state in force,
// and so does one that is emptied in place, or a path that disappears: what is wrong is
// told, with file and line, and nothing is taken down by a slip. Deleting a file from the
// directory deletes its objects. Writers should rename a complete file into place; one
// that is written slowly may be seen half done.
package manifest
