package informer

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-nft/kube-nft/nft/words"
)

// ErrNoServer says that nothing names an API server.
var ErrNoServer = errors.New("not running in a Kubernetes cluster")

// remedy ends every error about an unknown API server.
const remedy = "pass --kubeconfig FILE, or --manifests PATH to run without an API server"

// A Connection says how to reach the API server.
type Connection struct {
	// Kubeconfig is the path of a kubeconfig file; its current context is used. Empty means the
	// service account of this process's pod, unless Master is set.
	Kubeconfig string
	// Master is a URL that takes precedence over the server of the kubeconfig.
	Master string
	// Process is the process in a pod whose files and service account are used; nil means this process.
	Process *Process
	// QPS and Burst limit requests to the server; 0 means client-go's defaults, 5 and 10.
	QPS   float32
	Burst int
	// ContentType is the preferred encoding of objects; empty means protobuf. JSON is
	// accepted in any case.
	ContentType string
	// UserAgent is how the client names itself to the server; empty means client-go's
	// default, the program's name and build.
	UserAgent string
}

// A Process is another process, in a pod, whose connection to the API server this process uses as well.
type Process struct {
	Root   string // where its file system is, /proc/PID/root
	Server string // URL of its API server
}

// path returns where this process finds a file that p calls by this path.
func (p *Process) path(path string) string {
	if p == nil || !filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(p.Root, path)
}

// Files of the service account of a pod.
const (
	tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	caFile    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

// Config returns the client configuration of c. Its errors are single lines that say what to do. It
// does not contact the server.
func (c *Connection) Config() (*rest.Config, error) {
	config, err := c.credentials()
	if err != nil {
		return nil, err
	}
	if _, _, err := rest.DefaultServerUrlFor(config); err != nil {
		return nil, fmt.Errorf("%s: %s; expected a URL such as https://10.0.0.1:6443", c.origin(), words.OneLine(err))
	}
	config.ContentType = cmp.Or(c.ContentType, runtime.ContentTypeProtobuf)
	config.AcceptContentTypes = config.ContentType
	if config.ContentType != runtime.ContentTypeJSON {
		config.AcceptContentTypes += "," + runtime.ContentTypeJSON
	}
	config.QPS, config.Burst, config.UserAgent = c.QPS, c.Burst, c.UserAgent
	config.WarningHandler = rest.NoWarnings{} // about deprecated APIs, of which none is used
	return config, nil
}

// Client returns a client for the API server. Its errors are Config's errors, and errors about
// unusable certificates.
func (c *Connection) Client() (kubernetes.Interface, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %s; %s", c.origin(), words.OneLine(err), remedy)
	}
	return client, nil
}

// origin says where the address and credentials come from.
func (c *Connection) origin() string {
	switch {
	case c.Kubeconfig != "":
		return "kubeconfig " + c.Kubeconfig
	case c.Master != "":
		return "--master " + c.Master
	case c.Process != nil:
		return "service account of the pod of the running kube-nft"
	}
	return "service account of this pod"
}

func (c *Connection) credentials() (*rest.Config, error) {
	switch {
	case c.Kubeconfig != "":
		return c.fromFile()
	case c.Master != "":
		return &rest.Config{Host: c.Master}, nil
	case c.Process != nil:
		return &rest.Config{
			Host:            c.Process.Server,
			BearerTokenFile: c.Process.path(tokenFile),
			TLSClientConfig: rest.TLSClientConfig{CAFile: c.Process.path(caFile)},
		}, nil
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, fmt.Errorf("%w: %s", ErrNoServer, remedy)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s; %s", c.origin(), words.OneLine(err), remedy)
	}
	return config, nil
}

func (c *Connection) fromFile() (*rest.Config, error) {
	file, err := clientcmd.LoadFromFile(c.Process.path(c.Kubeconfig))
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, fmt.Errorf("%s: %s; %s", c.origin(), pathError.Err, remedy)
	}
	if err == nil {
		c.Process.relocate(file)
		err = clientcmd.ResolveLocalPaths(file)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s; %s", c.origin(), words.OneLine(err), remedy)
	}
	overrides := clientcmd.ConfigOverrides{}
	overrides.ClusterInfo.Server = c.Master
	config, err := clientcmd.NewDefaultClientConfig(*file, &overrides).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("%s: it names no cluster in its current context; %s", c.origin(), remedy)
	case err != nil:
		return nil, fmt.Errorf("%s: %s; %s", c.origin(), words.OneLine(err), remedy)
	}
	return config, nil
}

// relocate changes the absolute paths in a kubeconfig of p.
func (p *Process) relocate(file *clientcmdapi.Config) {
	for _, cluster := range file.Clusters {
		for _, path := range clientcmd.GetClusterFileReferences(cluster) {
			*path = p.path(*path)
		}
	}
	for _, user := range file.AuthInfos {
		for _, path := range clientcmd.GetAuthInfoFileReferences(user) {
			*path = p.path(*path)
		}
	}
}
