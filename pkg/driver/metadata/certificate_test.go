package metadata

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
)

// handshake connects to a server with the one certificate and expects another.
func handshake(t *testing.T, shown tls.Certificate, expected string) error {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{shown}, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.(*tls.Conn).Handshake()
		conn.Close()
	}()
	defer func() { <-served }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return tls.Client(conn, pinned(expected)).Handshake()
}

func TestOnlyThePinnedCertificateIsTaken(t *testing.T) {
	mine, err := newCertificate()
	if err != nil {
		t.Fatal(err)
	}
	other, err := newCertificate()
	if err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, mine, fingerprint(mine.Certificate[0])); err != nil {
		t.Errorf("the one that is named: %v", err)
	}
	for name, expected := range map[string]string{"another one": fingerprint(other.Certificate[0]), "none": ""} {
		if err := handshake(t, mine, expected); err == nil || !strings.Contains(err.Error(), "not the one that its UblkNode names") {
			t.Errorf("%s is named: %v", name, err)
		}
	}
}
