// Package covered is run by the rig's own tests, in a guest.
package covered

// Sign says which side of zero n is on.
func Sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}
