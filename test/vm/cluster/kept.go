package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// Kept is the access to a cluster that another process keeps.
type Kept struct {
	State
	Inside Inside
	http   *http.Client
}

// ErrNoCluster is the answer when no process keeps the cluster.
var ErrNoCluster = errors.New("no such cluster is up")

// Open finds the kept cluster of that name.
func Open(ctx context.Context, h *host.Host, name string) (*Kept, error) {
	if !validName.MatchString(name) || owner(h, name) == 0 {
		return nil, fmt.Errorf("cluster %s: %w", name, ErrNoCluster)
	}
	k := &Kept{http: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", keeperSocket(stateDir(h, name)))
	}}}}
	body, err := k.call(ctx, http.MethodGet, "/", "")
	if err != nil {
		return nil, fmt.Errorf("cluster %s is starting or going down, or a test has it for itself: %w", name, err)
	}
	defer body.Body.Close()
	if err := json.NewDecoder(body.Body).Decode(&k.State); err != nil {
		return nil, fmt.Errorf("cluster %s: decode its state: %w", name, err)
	}
	k.Inside = Inside{Kubeconfig: k.Kubeconfig, Kubectl: k.Kubectl, netns: namespaceOf(name)}
	return k, nil
}

func (k *Kept) call(ctx context.Context, method, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://keeper"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	answer, err := k.http.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	return answer, nil
}

// Run runs a script as root on node n (from 1), streams its output (both kinds together) and answers its exit status.
func (k *Kept) Run(ctx context.Context, n int, script string, out io.Writer) (int, error) {
	answer, err := k.call(ctx, http.MethodPost, fmt.Sprintf("/node/%d/run", n), script)
	if err != nil {
		return -1, err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(out, answer.Body); err != nil {
		return -1, fmt.Errorf("run on %s: %w", nodeName(n), err)
	}
	if text := answer.Trailer.Get(errorTrailer); text != "" {
		if plain, err := strconv.Unquote(text); err == nil {
			text = plain
		}
		return -1, errors.New(text)
	}
	status, err := strconv.Atoi(answer.Trailer.Get(statusTrailer))
	if err != nil {
		return -1, fmt.Errorf("run on %s: the keeper ended", nodeName(n))
	}
	return status, nil
}

// Shell runs a script on node n and returns its output. A status other than 0 is an error that carries the output.
func (k *Kept) Shell(ctx context.Context, n int, script string) (string, error) {
	var out strings.Builder
	status, err := k.Run(ctx, n, script, &out)
	if err == nil && status != 0 {
		err = fmt.Errorf("on %s: exit status %d%s", nodeName(n), status, host.Indent(host.Tail(out.String(), 20)))
	}
	return out.String(), err
}

// Kill ends node n like a power cut; Boot starts it again with the disks of its last life.
func (k *Kept) Kill(ctx context.Context, n int) error { return k.node(ctx, n, "kill") }

// Boot starts node n.
func (k *Kept) Boot(ctx context.Context, n int) error { return k.node(ctx, n, "boot") }

func (k *Kept) node(ctx context.Context, n int, what string) error {
	answer, err := k.call(ctx, http.MethodPost, fmt.Sprintf("/node/%d/%s", n, what), "")
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
