package driver

import (
	"log/slog"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// sanitized is a request as it may be logged: without secrets, which the
// protocol marks, and without mount flags, which it does not mark but forbids to
// leak all the same. The work is done only if the line is really written.
type sanitized struct{ req any }

func (s sanitized) LogValue() slog.Value {
	m, ok := s.req.(proto.Message)
	if !ok {
		return slog.StringValue("")
	}
	m = proto.Clone(m)
	_ = protorange.Range(m.ProtoReflect(), func(v protopath.Values) error {
		if msg, ok := v.Index(-1).Value.Interface().(protoreflect.Message); ok {
			if mount, ok := msg.Interface().(*csi.VolumeCapability_MountVolume); ok && len(mount.MountFlags) > 0 {
				mount.MountFlags = []string{"***stripped***"}
			}
		}
		return nil
	})
	return slog.StringValue(protosanitizer.StripSecrets(m).String())
}
