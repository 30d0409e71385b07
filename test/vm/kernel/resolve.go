package kernel

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// answerMaxAge is how long a found version is kept, so that a new upload does not cost every run of a day a kernel build.
const answerMaxAge = 7 * 24 * time.Hour

// origin is a package and the suite that has it.
type origin struct {
	host.Package
	suite string
}

func (o origin) String() string { return o.Package.String() + " of " + o.suite }

var (
	sourcePackage = regexp.MustCompile(`linux-source-[0-9.]+`)
	imagePackage  = regexp.MustCompile(`linux-image-amd64`)
)

// pocket is a part of the stable release's archive: "" or "-backports".
type pocket string

// newest finds the highest version of the packages with that name in the first pocket that has one.
func newest(ctx context.Context, h *host.Host, name *regexp.Regexp, pockets ...pocket) (origin, error) {
	note := "found." + host.Key(fmt.Sprint(pockets), name.String())
	if s, ok := h.Noted(note, answerMaxAge); ok {
		if f := strings.Fields(s); len(f) == 3 {
			return origin{host.Package{Name: f[0], Version: f[1]}, f[2]}, nil
		}
	}
	found, err := ask(ctx, h, name, pockets)
	if err != nil {
		// Without the archive, what was found at any time before is still as good as its cache entry.
		if s, ok := h.Noted(note, 0); ok && ctx.Err() == nil {
			if f := strings.Fields(s); len(f) == 3 {
				h.Say("the archive does not answer, %s %s of %s is taken from the cache", f[0], f[1], f[2])
				return origin{host.Package{Name: f[0], Version: f[1]}, f[2]}, nil
			}
		}
		return origin{}, err
	}
	return found, h.Note(note, found.Name+" "+found.Version+" "+found.suite)
}

func ask(ctx context.Context, h *host.Host, name *regexp.Regexp, pockets []pocket) (origin, error) {
	// The alias only says which release is the stable one: mirrors and caches keep aliases for longer than code names, and a
	// version that was found by the one may be gone by the other.
	stable, err := h.Apt(ctx, "stable")
	if err != nil {
		return origin{}, err
	}
	var errs []error
	for _, pocket := range pockets {
		suite := stable.Codename + string(pocket)
		apt, err := h.Apt(ctx, suite)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found, err := apt.Find(ctx, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(found) > 0 {
			return origin{found[len(found)-1], suite}, nil
		}
		errs = append(errs, fmt.Errorf("suite %s has no package %s", suite, name))
	}
	return origin{}, errors.Join(errs...)
}

// Forget drops the found versions: the next Get asks the archive again.
func Forget(h *host.Host) error { return h.Unnote("found.") }
