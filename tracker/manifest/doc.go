// Package manifest reads Services, EndpointSlices, Nodes and ServiceCIDRs from files and passes them to a
// tracker, so that kube-nft works without a cluster. Use Load to read the files once, or New and Run to
// read them and follow their changes.
//
// A path names a file or a directory. In a directory, the package reads the files *.yaml, *.yml and
// *.json in the order of their names; it skips hidden files and subdirectories. A file has one or more
// documents, as kubectl get -o yaml prints them, also Lists. The package sets the defaults that an API
// server would set.
//
// When a file becomes invalid or empty, or the path disappears, the last valid content stays in force, and
// an error names file and line. Deleting a file from the directory deletes its objects. Writers should
// rename a complete file into place, because the package may read a file that is only half written.
package manifest
