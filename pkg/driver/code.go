package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// InvalidError says which field of a request is wrong, why, and what to do.
type InvalidError struct {
	Field   string // as the user knows it: `parameters["pool"]`, "volume_id"
	Problem string // "is empty", `"zfs" is not a file system that this driver makes`
	Remedy  string // "use ext4 or xfs"; may be empty
}

// OneOf lists choices for a remedy: "a, b or c".
func OneOf(choices []string) string {
	last := len(choices) - 1
	if last < 1 {
		return strings.Join(choices, "")
	}
	return strings.Join(choices[:last], ", ") + " or " + choices[last]
}

func (e *InvalidError) Error() string {
	if e.Remedy == "" {
		return fmt.Sprintf("%s %s", e.Field, e.Problem)
	}
	return fmt.Sprintf("%s %s: %s", e.Field, e.Problem, e.Remedy)
}

// rules is the only map from errors to gRPC codes, tried in this order. It knows
// errors of the standard library and of this package, so that no domain package
// is imported here and none of them imports gRPC.
var rules = []struct {
	match func(error) bool
	code  codes.Code
}{
	{as[*BusyError], codes.Aborted},
	{as[*InvalidError], codes.InvalidArgument},
	// Before the errnos: an operation cut short may carry one of those as well,
	// and callers must retry it rather than take it for an answer.
	{is(context.DeadlineExceeded), codes.DeadlineExceeded},
	{is(context.Canceled), codes.Canceled},
	{is(fs.ErrNotExist), codes.NotFound},
	{is(fs.ErrExist), codes.AlreadyExists},
	{is(syscall.ENOSPC, syscall.EDQUOT), codes.ResourceExhausted},
	{is(syscall.ERANGE, syscall.EFBIG), codes.OutOfRange},
	{is(syscall.EBUSY), codes.FailedPrecondition},
	// The RPC is offered (else gRPC itself says UNIMPLEMENTED), it is this node
	// or pool that can't do it.
	{is(errors.ErrUnsupported), codes.FailedPrecondition},
}

// Code is the gRPC code that err stands for: OK for nil, the code of a gRPC
// status anywhere in its chain, else what rules say, else INTERNAL.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) && s.GRPCStatus() != nil {
		return s.GRPCStatus().Code()
	}
	for _, r := range rules {
		if r.match(err) {
			return r.code
		}
	}
	return codes.Internal
}

// ToStatus turns err into what a CSI method may return: a gRPC status with
// Code(err), a message and no details (CSI spec, "Error Scheme"). nil stays nil.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	message := err.Error()
	// The status's own text, without gRPC's "rpc error: code = ..." before it,
	// unless somebody wrapped it and added to the story.
	if s, ok := err.(interface{ GRPCStatus() *status.Status }); ok && s.GRPCStatus() != nil { //nolint:errorlint // only the unwrapped one
		message = s.GRPCStatus().Message()
	}
	if message == "" {
		message = Code(err).String()
	}
	return status.Error(Code(err), message)
}

func is(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
}

func as[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}
