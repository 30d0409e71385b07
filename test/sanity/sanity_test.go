//go:build sanity

package sanity

import (
	"encoding/xml"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// notOffered matches what csi-sanity says when it leaves out a spec of a
// capability that the driver does not have. Any other reason is a failure.
var notOffered = regexp.MustCompile(strings.Join([]string{
	"ControllerPublishVolume not supported", "ControllerUnpublishVolume not supported",
	"Controller Publish, UnpublishVolume not supported", "ControllerPublishVolume.readonly field not supported",
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported",
	"testnodevolumeattachlimit not enabled",
}, "|"))

// report is csi-sanity's JUnit report.
type report struct {
	Cases []struct {
		Name    string `xml:"name,attr"`
		Status  string `xml:"status,attr"`
		Failure *note  `xml:"failure"`
		Error   *note  `xml:"error"`
		Skipped *note  `xml:"skipped"`
		Log     string `xml:"system-err"`
	} `xml:"testsuite>testcase"`
}

type note struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func TestMount(t *testing.T) { sanity(t, "mount") }
func TestBlock(t *testing.T) { sanity(t, "block") }

// sanity runs all specs with one access type, each as a subtest.
func sanity(t *testing.T, access string) {
	// The driver sees only what is in the kubelet's directory.
	dir, err := os.MkdirTemp("/var/lib/kubelet", "sanity")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	junit, mutable := dir+"/junit.xml", dir+"/mutable.yaml"
	if err := os.WriteFile(mutable, []byte("iops: \"100000\"\nbandwidth: 1Gi\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--csi.endpoint=" + endpoint(t, "SANITY_NODE"), "--csi.controllerendpoint=" + endpoint(t, "SANITY_CONTROLLER"),
		"--csi.mountdir=" + dir + "/mount", "--csi.stagingdir=" + dir + "/staging",
		"--csi.testvolumeaccesstype=" + access, "--csi.testvolumesize=536870912", "--csi.testvolumeexpandsize=1073741824",
		"--csi.testvolumemutableparameters=" + mutable,
		"--ginkgo.junit-report=" + junit, "--ginkgo.no-color",
	}
	out, err := exec.CommandContext(t.Context(), "csi-sanity", args...).CombinedOutput()
	failed := err != nil
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(junit)
	if err != nil {
		t.Fatalf("csi-sanity wrote no report: %v\n%s", err, out)
	}
	var r report
	if err := xml.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	ran := r.check(t)
	if ran < 40 {
		t.Errorf("only %d specs ran\n%s", ran, out)
	}
	if failed != t.Failed() {
		t.Errorf("csi-sanity failed: %t, its specs: %t\n%s", failed, t.Failed(), out)
	}
	nothingLeft(t)
}

// check makes a subtest of every spec and returns how many ran.
func (r report) check(t *testing.T) (ran int) {
	for _, c := range r.Cases {
		name, isSpec := strings.CutPrefix(c.Name, "[It] ")
		if !isSpec && c.Failure == nil && c.Error == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			switch {
			case c.Failure != nil:
				t.Errorf("%s\n%s\n%s", c.Failure.Message, c.Failure.Text, c.Log)
			case c.Error != nil:
				t.Errorf("%s\n%s\n%s", c.Error.Message, c.Error.Text, c.Log)
			case c.Status == "pending":
				t.Skip("pending in csi-sanity itself")
			case c.Skipped != nil && notOffered.MatchString(c.Skipped.Message):
				t.Skip(c.Skipped.Message)
			case c.Skipped != nil:
				t.Errorf("left out for no good reason: %s", c.Skipped.Message)
			case c.Status != "passed":
				t.Errorf("status %q", c.Status)
			default:
				ran++
			}
		})
	}
	return ran
}
