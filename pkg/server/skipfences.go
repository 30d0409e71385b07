//go:build !ublk_nofence

package server

// skipFences is false in every build but the one that proves, in a test on a
// slow disk, that data is lost without the fence. It is a constant: no flag,
// variable or setting of a product binary can change it.
const skipFences = false
