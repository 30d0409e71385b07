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
func newest(ctx context.Context, h *host.Host, name *regexp.Regexp, pockets []pocket) (origin, error) {
	if o, ok := known(h, answerMaxAge, name, pockets); ok {
		return o, nil
	}
	found, err := ask(ctx, h, name, pockets)
	if err != nil {
		// Without the archive, what was found at any time before is still as good as its cache entry.
		if o, ok := known(h, 0, name, pockets); ok && ctx.Err() == nil {
			h.Say("the archive does not answer, %s is taken from the cache", o)
			return o, nil
		}
		return origin{}, err
	}
	return found, h.Note(noteFor(name, pockets), found.Name+" "+found.Version+" "+found.suite)
}

func noteFor(name *regexp.Regexp, pockets []pocket) string {
	return "found." + host.Key(fmt.Sprint(pockets), name.String())
}

// known returns the last answer for that question, if it is not older than maxAge (0: of any age).
func known(h *host.Host, maxAge time.Duration, name *regexp.Regexp, pockets []pocket) (origin, bool) {
	s, ok := h.Noted(noteFor(name, pockets), maxAge)
	f := strings.Fields(s)
	if !ok || len(f) != 3 {
		return origin{}, false
	}
	return origin{host.Package{Name: f[0], Version: f[1]}, f[2]}, true
}

// Cached says in a few words what the cache has of a variant; it asks nobody.
func Cached(h *host.Host, v Variant, m Machine) (what string, ok bool) {
	name, key := imagePackage, stockKey
	if m == UML {
		name, key = sourcePackage, umlKey
	}
	o, ok := known(h, 0, name, v.pockets())
	if !ok {
		return "", false
	}
	_, ok = h.Has("kernel", key(o))
	return o.String(), ok
}

// pockets is where a variant's package is looked for, in this order.
func (v Variant) pockets() []pocket {
	if v == LTS {
		return []pocket{""}
	}
	return []pocket{"-backports", ""}
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
