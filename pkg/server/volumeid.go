package server

import (
	"regexp"
	"strings"
)

var volumeID = regexp.MustCompile(`^[a-z0-9][-a-z0-9.]{0,62}$`)

// validVolumeID reports whether an id may become the name of a file.
func validVolumeID(id string) bool { return volumeID.MatchString(id) && !strings.Contains(id, "..") }
