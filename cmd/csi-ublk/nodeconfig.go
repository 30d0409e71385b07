package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// nodeConfig is the file that --config of the node role names.
type nodeConfig struct {
	Pools []poolConfig `json:"pools"`
}

type poolConfig struct {
	Name        string            `json:"name"`
	Kind        pool.Kind         `json:"kind"`
	Path        string            `json:"path"`
	Device      string            `json:"device"`
	Size        resource.Quantity `json:"size"`
	Reserve     reserve           `json:"reserve"`
	FSType      string            `json:"fsType"`
	Preallocate bool              `json:"preallocate"`
	Overcommit  float64           `json:"overcommit"`
}

// defaultReservePercent leaves a pool's file system room for its own metadata.
const defaultReservePercent = 5

// maxTemplates is enough for the sizes and file systems that one cluster uses at a
// time; one for volumes of 1 GiB takes about a MiB.
const maxTemplates = 32

// reserve is a size or a percentage.
type reserve struct {
	set     bool
	bytes   int64
	percent int
}

func (r *reserve) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		text = string(b) // a bare number
	}
	r.set = true
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		n, err := strconv.Atoi(percent)
		if err != nil {
			return fmt.Errorf("reserve %q is not a whole percentage", text)
		}
		r.percent = n
		return nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("reserve %q is neither a size, as 512Mi, nor a percentage, as 5%%", text)
	}
	r.bytes = q.Value()
	return nil
}

// readNodeConfig reads and checks the file. Errors name the file, and the key or
// the pool.
func readNodeConfig(file string) (nodeConfig, error) {
	var c nodeConfig
	text, err := os.ReadFile(file)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return c, fmt.Errorf("configuration %s: %w", file, err)
	}
	if len(c.Pools) == 0 {
		return c, fmt.Errorf("configuration %s: pools: at least one pool is needed", file)
	}
	return c, nil
}

// options turns the pools of the file into what opens them.
func (c nodeConfig) options(node nodeOptions, reclaimBytesPerSecond int64, onChange func()) []pool.Options {
	list := make([]pool.Options, 0, len(c.Pools))
	for _, p := range c.Pools {
		o := pool.Options{
			Name: p.Name, Kind: p.Kind, StateDir: node.stateDir,
			Path: p.Path, Device: p.Device, SizeBytes: p.Size.Value(), FSType: p.FSType,
			ReserveBytes: p.Reserve.bytes, ReservePercent: p.Reserve.percent,
			Preallocate: p.Preallocate, Overcommit: p.Overcommit,
			ReclaimBytesPerSecond: reclaimBytesPerSecond,
			OnChange:              onChange,
		}
		if node.templates {
			o.MaxTemplates = maxTemplates
		}
		if !p.Reserve.set {
			o.ReservePercent = defaultReservePercent
		}
		list = append(list, o)
	}
	return list
}
