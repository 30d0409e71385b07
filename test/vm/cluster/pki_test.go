package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The certificates are used as the cluster's parts use them: a server with the API server's, a client with a kubeconfig.
func TestKubeconfigsAuthenticateBothWays(t *testing.T) {
	dir := t.TempDir()
	pki, share, admin := filepath.Join(dir, "pki"), filepath.Join(dir, "share"), filepath.Join(dir, "kubeconfig")
	if err := credentials(pki, share, admin, 2); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(ca)
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.TLS.PeerCertificates[0]
		w.Write([]byte(c.Subject.String()))
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert}
	s.StartTLS()
	defer s.Close()

	for path, want := range map[string]string{
		admin: "CN=admin,O=system:masters",
		filepath.Join(pki, "controller-manager.kubeconfig"): "CN=system:kube-controller-manager",
		filepath.Join(pki, "scheduler.kubeconfig"):          "CN=system:kube-scheduler",
		filepath.Join(share, "proxy.kubeconfig"):            "CN=system:kube-proxy",
		filepath.Join(share, "node2.kubeconfig"):            "CN=system:node:node2,O=system:nodes",
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			config, err := clientcmd.BuildConfigFromFlags("", path)
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != "https://10.201.0.1:443" {
				t.Errorf("server %s", config.Host)
			}
			if got := get(t, config, s.Listener.Addr().String()); got != want {
				t.Errorf("the server sees %q, want %q", got, want)
			}
		})
	}
}

// get asks the server at address, under the name that the kubeconfig has for it, so that the certificate's names are checked.
func get(t *testing.T, config *rest.Config, address string) string {
	t.Helper()
	c, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DialContext: dial}}
	r, err := client.Get(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b := make([]byte, 200)
	n, _ := r.Body.Read(b)
	return string(b[:n])
}

func TestKubeletCertificateIsForTheNodesAddressOnly(t *testing.T) {
	dir := t.TempDir()
	if err := credentials(filepath.Join(dir, "pki"), filepath.Join(dir, "share"), filepath.Join(dir, "kubeconfig"), 2); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "share/node2.crt"), filepath.Join(dir, "share/node2.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "share/ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	for host, good := range map[string]bool{"10.201.0.12": true, "node2": true, "10.201.0.11": false, "10.201.0.1": false} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); (err == nil) != good {
			t.Errorf("certificate of node2 for %s: %v", host, err)
		}
	}
}
