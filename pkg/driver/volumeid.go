package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

var (
	// plainName is a CSI name that serves as volume id as it is: a DNS subdomain,
	// because it names a Kubernetes object, of 63 bytes at most, because it names
	// a file and may become a label value.
	plainName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	volumeID  = regexp.MustCompile(`^[a-z0-9][-a-z0-9.]{0,62}$`)
)

// hashed marks ids made from a hash; no plain name may look like one.
const hashed = "h-"

// VolumeID is the volume id for a name given to CreateVolume: the name itself
// where it can be one, else a hash of it. Two names never share an id.
func VolumeID(name string) string {
	if len(name) <= 63 && plainName.MatchString(name) && !strings.HasPrefix(name, hashed) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hashed + hex.EncodeToString(sum[:20])
}

// ValidVolumeID says whether id can be the id of a volume of this driver, and
// thus whether it is safe as a path element. Ids that are not valid name no
// volume: NOT_FOUND, or for deletions OK.
func ValidVolumeID(id string) bool {
	return volumeID.MatchString(id) && !strings.Contains(id, "..")
}
