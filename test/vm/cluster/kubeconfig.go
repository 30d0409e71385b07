package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfig returns a kubeconfig that carries the authority and the client's certificate.
func kubeconfig(server string, ca []byte, client pair) ([]byte, error) {
	const name = "csi-ublk"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: client.cert, ClientKeyData: client.key}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	text, err := clientcmd.Write(*c)
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return text, nil
}

// credentials writes all of a cluster's certificates, keys and kubeconfigs: those of the control plane into pki, those that
// nodes read into share. The kubeconfig of the administrator goes to admin.
func credentials(pki, share, admin string, nodes int) error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	w := &credentialWriter{ca: ca}
	for _, dir := range []string{pki, share} {
		w.do(os.MkdirAll(dir, 0o700))
		w.do(os.WriteFile(filepath.Join(dir, "ca.crt"), ca.pem, 0o644))
	}
	key, err := keyPEM(ca.key)
	w.do(err)
	w.do(os.WriteFile(filepath.Join(pki, "ca.key"), key, 0o600))
	w.do(serviceAccountKeys(pki))
	w.pair(pki, "apiserver", purpose{name: "kube-apiserver", hosts: []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"127.0.0.1", serviceAddress, controlAddress,
	}})
	w.pair(pki, "kubelet-client", purpose{name: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}, client: true})
	w.kubeconfig(admin, purpose{name: "admin", groups: []string{"system:masters"}, client: true})
	w.kubeconfig(filepath.Join(pki, "controller-manager.kubeconfig"), purpose{name: "system:kube-controller-manager", client: true})
	w.kubeconfig(filepath.Join(pki, "scheduler.kubeconfig"), purpose{name: "system:kube-scheduler", client: true})
	w.kubeconfig(filepath.Join(share, "proxy.kubeconfig"), purpose{name: "system:kube-proxy", client: true})
	for n := 1; n <= nodes; n++ {
		node := nodeName(n)
		w.kubeconfig(filepath.Join(share, node+".kubeconfig"), purpose{name: "system:node:" + node, groups: []string{"system:nodes"}, client: true})
		w.pair(share, node, purpose{name: node, hosts: []string{node, nodeAddress(n)}})
	}
	return errors.Join(w.errs...)
}

// credentialWriter collects errors, so that the list above reads as a list.
type credentialWriter struct {
	ca   *authority
	errs []error
}

func (w *credentialWriter) do(err error) {
	if err != nil {
		w.errs = append(w.errs, err)
	}
}

func (w *credentialWriter) pair(dir, name string, p purpose) {
	c, err := w.ca.issue(p)
	w.do(err)
	w.do(c.save(dir, name))
}

func (w *credentialWriter) kubeconfig(path string, p purpose) {
	c, err := w.ca.issue(p)
	w.do(err)
	text, err := kubeconfig(server, w.ca.pem, c)
	w.do(err)
	w.do(os.WriteFile(path, text, 0o600))
}

// serviceAccountKeys writes sa.key and sa.pub: what signs the tokens of pods, and what checks them.
func serviceAccountKeys(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make service account key: %w", err)
	}
	text, err := keyPEM(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("encode service account key: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "sa.key"), text, 0o600),
		os.WriteFile(filepath.Join(dir, "sa.pub"), encode("PUBLIC KEY", public), 0o644),
	)
}
