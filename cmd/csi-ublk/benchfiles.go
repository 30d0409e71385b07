package main

import (
	"os"

	"github.com/csi-ublk/csi-ublk/pkg/bench"
)

// readReports reads and merges the reports in files.
func readReports(files []string) (*bench.Merged, error) {
	var all []*bench.Report
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		list, err := bench.Read(f, name)
		f.Close()
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return bench.Merge(all...)
}
