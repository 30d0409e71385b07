package controller

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// defaultBytes is the size of a volume when the caller asks for none.
const defaultBytes = 1 << 30

// volumeBytes picks the size for a capacity range: what is required, rounded up
// to a MiB, within the limit, and no less than least.
func volumeBytes(r *csi.CapacityRange, least int64) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, &driver.InvalidError{Field: "capacity_range", Problem: "has a negative size"}
	case limit > 0 && required > limit:
		return 0, &driver.InvalidError{Field: "capacity_range", Problem: fmt.Sprintf("requires %d bytes and limits to %d", required, limit)}
	case limit > 0 && limit < least:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range.limit_bytes is %d: a volume of this kind has at least %d bytes (%s); ask for that or more", limit, least, leastSizes)
	case required > 0 && required < least:
		return 0, status.Errorf(codes.OutOfRange, "capacity_range.required_bytes is %d: a volume of this kind has at least %d bytes (%s); ask for that or more", required, least, leastSizes)
	}
	if required == 0 {
		required = max(defaultBytes, least)
		if limit > 0 {
			required = min(required, limit/mib*mib)
		}
	}
	size := (required-1)/mib*mib + mib
	if size < 0 || limit > 0 && size > limit {
		return 0, status.Errorf(codes.OutOfRange, "capacity_range: there is no whole number of MiB from %d to %d bytes; volumes have whole MiB", required, limit)
	}
	return size, nil
}

// checkRange says whether an existing volume has a size in the range; the answer
// is "" or what is wrong.
func checkRange(bytes int64, r *csi.CapacityRange) string {
	if bytes < r.GetRequiredBytes() {
		return fmt.Sprintf("it has %d bytes, %d are required", bytes, r.GetRequiredBytes())
	}
	if limit := r.GetLimitBytes(); limit > 0 && bytes > limit {
		return fmt.Sprintf("it has %d bytes, %d are the limit", bytes, limit)
	}
	return ""
}
